package main

import (
	"encoding/json"
	"io"
	"sync"
)

// output writes JSON lines whole, whichever client they come from.
type output struct {
	mutex   sync.Mutex
	encoder *json.Encoder
}

func newOutput(sink io.Writer) *output {
	return &output{encoder: json.NewEncoder(sink)}
}

func (o *output) write(line any) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if err := o.encoder.Encode(line); err != nil {
		panic(err) // the test that reads has gone
	}
}

// report writes what every client holds and has counted so far.
func (o *output) report(clients []*client) {
	all := map[string]summary{}
	for _, c := range clients {
		all[c.name] = c.summary()
	}
	o.write(map[string]any{"report": all})
}
