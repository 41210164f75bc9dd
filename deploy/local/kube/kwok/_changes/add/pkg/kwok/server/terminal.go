package server

import (
	"io"
	"os"
	"time"
)

// terminal copies between a command's terminal and its client. What it returns is called when the command has ended:
// it waits until all that was written has gone out.
func terminal(pty *os.File, in io.Reader, out io.Writer) func(tty *os.File) {
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = io.Copy(out, pty)
	}()
	if in != nil {
		go func() {
			_, _ = io.Copy(pty, in)
		}()
	}
	return func(tty *os.File) {
		_ = tty.Close() // the last one that is open: reading the terminal ends behind what is in it
		select {
		case <-written:
		case <-time.After(time.Second): // the command left something running that has it open
		}
	}
}
