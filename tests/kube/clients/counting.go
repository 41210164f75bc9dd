package main

import (
	"net/http"
	"sync"

	"k8s.io/client-go/rest"
)

// requests counts what a client asks for: lists (pages after the first are not counted again), watches that
// begin with the state, watches that go on from a version, and refusals by status code.
type requests struct {
	mutex    sync.Mutex
	Lists    int         `json:"lists"`
	Streams  int         `json:"streams"`
	Resumes  int         `json:"resumes"`
	Failures int         `json:"failures"`
	Refusals map[int]int `json:"refusals"`
	Answers  string      `json:"answers"`
}

// counted returns the configuration with every request of its client counted.
func counted(config *rest.Config) (*rest.Config, *requests) {
	counts := &requests{Refusals: map[int]int{}}
	own := rest.CopyConfig(config)
	own.Wrap(func(next http.RoundTripper) http.RoundTripper { return &counter{next, counts} })
	return own, counts
}

type counter struct {
	next   http.RoundTripper
	counts *requests
}

func (c *counter) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(request)
	c.counts.mutex.Lock()
	defer c.counts.mutex.Unlock()
	if err != nil {
		c.counts.Failures++
		return response, err
	}
	if response.StatusCode >= http.StatusBadRequest {
		c.counts.Refusals[response.StatusCode]++
		return response, nil
	}
	c.counts.Answers = response.Header.Get("Content-Type")
	query := request.URL.Query()
	switch {
	case query.Get("watch") == "":
		if query.Get("continue") == "" {
			c.counts.Lists++
		}
	case query.Get("sendInitialEvents") == "true":
		c.counts.Streams++
	default:
		c.counts.Resumes++
	}
	return response, nil
}

func (r *requests) snapshot() requests {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	refusals := map[int]int{}
	for code, count := range r.Refusals {
		refusals[code] = count
	}
	return requests{
		Lists: r.Lists, Streams: r.Streams, Resumes: r.Resumes, Failures: r.Failures,
		Refusals: refusals, Answers: r.Answers,
	}
}
