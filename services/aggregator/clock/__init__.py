"""One monotonic resourceVersion over many clusters: feeds, sequencer, markers in etcd, log. See docs/clock.md."""
