"""Reclock's clock, reads and writes in virtual time: one event loop, no sockets, everything from one seed."""
