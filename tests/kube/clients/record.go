package main

import (
	"fmt"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// event is one line of what a client was told.
type event struct {
	Client  string `json:"client"`
	Type    string `json:"type"`
	UID     string `json:"uid"`
	Name    string `json:"name"`
	Version string `json:"resourceVersion"`
}

// summary is a client's part of a report: what it holds (uid -> version), what it asked for, what broke the
// watch contract, and how many events it was told.
type summary struct {
	Store    map[string]string `json:"store"`
	Requests requests          `json:"requests"`
	Breaches []string          `json:"breaches"`
	Events   int               `json:"events"`
}

// record judges the events of one client: the stream as it came over the wire, before client-go's caches could
// hide that something was said twice.
type record struct {
	mutex    sync.Mutex
	client   string
	out      *output
	known    map[string]string // uid -> version
	position uint64
	events   int
	breaches []string
}

func newRecord(client string, out *output) *record {
	return &record{client: client, out: out, known: map[string]string{}, breaches: []string{}}
}

// listed takes the state that a list told: anything known before is forgotten.
func (r *record) listed(version string, items []metav1.Object) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.known = map[string]string{}
	r.position = number(version)
	for _, item := range items {
		r.known[string(item.GetUID())] = item.GetResourceVersion()
	}
}

// restarted is called before a watch that begins with the state: its first events are that state.
func (r *record) restarted() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.known, r.position = map[string]string{}, 0
}

// told takes one event of a watch. With `initial` the state is being told, in the order of names.
func (r *record) told(kind watch.EventType, object metav1.Object, initial bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	line := event{r.client, string(kind), string(object.GetUID()), object.GetName(), object.GetResourceVersion()}
	if !initial {
		r.advance(line)
	}
	if kind == watch.Bookmark {
		return
	}
	r.events++
	_, known := r.known[line.UID]
	switch {
	case kind == watch.Added && known:
		r.breach("ADDED twice", line)
	case kind != watch.Added && !known:
		r.breach("never ADDED", line)
	}
	if kind == watch.Deleted {
		delete(r.known, line.UID)
	} else {
		r.known[line.UID] = line.Version
	}
	r.out.write(line)
}

// advance checks that versions strictly grow (a bookmark may repeat the last one).
func (r *record) advance(line event) {
	version := number(line.Version)
	if version < r.position || (version == r.position && line.Type != string(watch.Bookmark)) {
		r.breach(fmt.Sprintf("not above %d", r.position), line)
	}
	r.position = version
}

func (r *record) breach(what string, line event) {
	r.breaches = append(r.breaches, fmt.Sprintf("%s: %s %s %s at %s", what, line.Type, line.Name, line.UID, line.Version))
}

// failed notes an ERROR event.
func (r *record) failed(status *metav1.Status) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.breaches = append(r.breaches, fmt.Sprintf("ERROR %d %s: %s", status.Code, status.Reason, status.Message))
}

// number reads a version; what is no number counts as 0, and so as a step back.
func number(version string) uint64 {
	parsed, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return parsed
}
