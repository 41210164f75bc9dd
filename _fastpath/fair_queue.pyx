# distutils: depends = _fastpath/fair_queue.h
# cython: binding=False
"""A work queue over many clusters: client-go's contract, fair between clusters and their namespaces.

Python owns the API and the waiting; the state is C structs that link by index (queue_core.pxi). Order:
cluster by start-time fair queuing charged by time (queue_clusters.pxi), then priority, then namespaces in
turn, then first in, first out (queue_turns.pxi); delays in queue_delays.pxi. Every operation is
O(log clusters), delayed adds O(log delayed). Belongs to one event loop's thread; no method blocks.
"""
cimport cython
from cpython.dict cimport PyDict_GetItem, PyDict_GetItemWithError
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.math cimport INFINITY, isfinite, ldexp
from libc.stdint cimport int16_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from posix.stdlib cimport posix_memalign

import asyncio
import time
from collections import deque, namedtuple

cdef extern from "Python.h":
    PyObject *PyList_GET_ITEM(PyObject *list, Py_ssize_t i) noexcept   # Cython's own makes a reference

cdef extern from "fair_queue.h":
    ctypedef struct fq_ent:
        uint64_t tag
        uint64_t turn
        uint32_t cluster
        uint32_t rank
    bint fq_less(const fq_ent *a, const fq_ent *b) noexcept
    uint64_t fq_bits(double tag) noexcept
    uint32_t fq_mix(uint64_t a, uint64_t b) noexcept
    uint32_t fq_namespace(PyObject *key) noexcept
    uint64_t fq_str_hash(PyObject *key) noexcept
    bint fq_same_key(PyObject *a, PyObject *b) noexcept
    void fq_prefetch(const void *p) noexcept
    bint fq_has_monotonic() noexcept
    double fq_monotonic() noexcept
    uint32_t fq_guess(PyObject *name) noexcept
    uint32_t fq_bucket(double seconds) noexcept
    int fq_member(type of, const char *name, Py_ssize_t offset) except -1
    void check "assert"(bint holds) noexcept   # nothing but in the debug build

include "queue_core.pxi"
include "queue_turns.pxi"
include "queue_clusters.pxi"
include "queue_delays.pxi"

cdef double MIN_WEIGHT = 1e-6, MAX_WEIGHT = 1e6
cdef u64 queues = 0   # queues made so far: an item knows its own

BOUNDS = [0.0] + [(1 + n % 2 / 2) * 2.0 ** (n // 2 - 16) for n in range(BUCKETS - 1)]
"""Seconds from which on a duration is in the bucket of that place in `spreads`."""

ClusterStats = namedtuple("ClusterStats", (
    "cluster", "weight", "cap", "paused", "depth", "delayed", "processing", "adds", "served", "retries",
    "queue_seconds", "work_seconds", "share", "unfinished_seconds", "longest_running",
))


class ShutDown(Exception):
    """The queue was shut down and has handed out all it had."""


@cython.final
@cython.freelist(256)
cdef class Item:
    """One key being processed: what `get` hands out and `done` takes back."""
    cdef str cluster_   # `cluster` and `key` to Python, see below
    cdef str key_
    cdef readonly int priority
    cdef readonly int attempts    # rate-limited adds since `forget`
    cdef readonly double waited   # seconds in the queue, delays not counted
    cdef u64 queue, serial
    cdef u32 run

    @property
    def namespace(self) -> str:
        return self.key_.partition("/")[0] if "/" in self.key_ else ""

    @property
    def name(self) -> str:
        return self.key_.rpartition("/")[2]

    def __repr__(self) -> str:
        return f"<Item {self.cluster_}:{self.key_} priority={self.priority} attempts={self.attempts}>"


cdef extern from "fair_queue.h":
    Py_ssize_t FQ_OFFSET_OF_CLUSTER(Item item) noexcept
    Py_ssize_t FQ_OFFSET_OF_KEY(Item item) noexcept

cdef int show_members(Item item) except -1:
    fq_member(Item, "cluster", FQ_OFFSET_OF_CLUSTER(item))
    return fq_member(Item, "key", FQ_OFFSET_OF_KEY(item))

show_members(Item.__new__(Item))


cdef double checked_weight(weight) except -1:
    cdef double w = weight
    if not MIN_WEIGHT <= w <= MAX_WEIGHT:   # refuses NaN too
        raise ValueError(f"weight {weight!r}: must be between {MIN_WEIGHT:g} and {MAX_WEIGHT:g}")
    return w


cdef double positive(str name, value, bint zero=False) except -1:
    cdef double v = value
    if not isfinite(v) or v < 0 or (v == 0 and not zero):
        raise ValueError(f"{name} {value!r}: must be a finite number {'>=' if zero else '>'} 0")
    return v


cdef inline int checked_priority(int priority) except -32768:
    if not -32767 <= priority <= 32767:
        raise ValueError(f"priority {priority}: must be between -32767 and 32767")
    return priority


include "queue_state.pxi"
include "queue_members.pxi"
include "queue_verbs.pxi"


# A waiter is a future in `waiters`. Whoever makes something eligible wakes one; a woken waiter that leaves
# more behind wakes the next, one that is cancelled hands its wake-up on: none is lost.

@cython.final
cdef class FairQueue(_Verbs):
    """See the module, and design rules 1 to 12 of the reconciler's fair queue.

    `expected_work` (s): what a call is charged at once; longer ones pay as they run. `base_delay` and
    `max_delay` (s): back-off of `add_rate_limited`. `max_wait` (s): who waits longer counts as its cluster's
    highest priority. `workers`: a cluster's default cap is a quarter of them. `priority_first`: priority
    before cluster. `clock`: seconds, monotonic.
    """

    async def _wait(self):
        future = asyncio.get_running_loop().create_future()
        self.waiters.append(future)
        self.waiting += 1
        self.rearm()
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled():
                if self.q.heap_len or self.shutting:
                    self.wake()
            elif future in self.waiters:
                self.waiters.remove(future)
                self.waiting -= 1
            raise

    async def get(self):
        """The next item; waits while there is none. Raises ShutDown once shut down and all handed out."""
        while True:
            item = self.take_next()
            if item is not None:
                self._after_take()
                return item
            if self.ended():
                raise ShutDown()
            await self._wait()

    async def ready(self):
        """Wait until `get_nowait` has something. Raises ShutDown as `get`. For one consumer."""
        while not self.has_next():
            if self.ended():
                raise ShutDown()
            await self._wait()

    async def get_many(self, int limit):
        """The next items, at least one and at most `limit`; as `get`."""
        if limit < 1:
            raise ValueError(f"limit {limit}: must be at least 1")
        items = [await self.get()]
        while len(items) < limit:
            item = self.take_next()
            if item is None:
                break
            items.append(item)
        self._after_take()
        return items

    cdef _after_take(self):
        if self.waiting:
            if self.q.heap_len:
                self.wake()
            self.settle_end()

    def shut_down(self) -> None:
        """Take nothing more, drop what is delayed, hand out what is queued, then raise ShutDown."""
        cdef Core *q = &self.q
        cdef u32 i
        self.shutting = True
        while q.delays_len:
            i = q.delays[q.delays_len - 1].rec
            undelay(q, i)
            drop_rec(q, i)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.settle_end()

    async def drain(self) -> None:
        """Shut down, and wait until nothing is processed any more."""
        self.shut_down()
        while self.q.processing:
            future = asyncio.get_running_loop().create_future()
            self.drains.append(future)
            await future
