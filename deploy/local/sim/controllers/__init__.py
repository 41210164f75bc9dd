"""The controllers of a simulated cluster: event-driven, on the world's timers, without tasks. An idle one costs nothing."""
