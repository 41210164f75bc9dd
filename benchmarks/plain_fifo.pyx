# distutils: include_dirs = _fastpath
# cython: binding=False
"""The plain queue that the fair one is measured against: same records, table, items and clock; one list."""
cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.dict cimport PyDict_GetItem
from libc.stdint cimport int16_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from posix.stdlib cimport posix_memalign

cdef extern from "fair_queue.h":
    ctypedef struct fq_ent:
        uint64_t tag
        uint64_t turn
        uint32_t cluster
        uint32_t rank
    uint32_t fq_mix(uint64_t a, uint64_t b) noexcept
    uint64_t fq_str_hash(PyObject *key) noexcept
    bint fq_same_key(PyObject *a, PyObject *b) noexcept
    void fq_prefetch(const void *p) noexcept
    double fq_monotonic() noexcept
    int fq_member(type of, const char *name, Py_ssize_t offset) except -1
    void check "assert"(bint holds) noexcept

include "queue_core.pxi"


@cython.final
@cython.freelist(256)
cdef class Item:
    cdef str cluster_
    cdef str key_
    cdef readonly double waited
    cdef double start
    cdef u32 rec


cdef extern from "fair_queue.h":
    Py_ssize_t FQ_OFFSET_OF_CLUSTER(Item item) noexcept
    Py_ssize_t FQ_OFFSET_OF_KEY(Item item) noexcept

cdef int show_members(Item item) except -1:
    fq_member(Item, "cluster", FQ_OFFSET_OF_CLUSTER(item))
    return fq_member(Item, "key", FQ_OFFSET_OF_KEY(item))

show_members(Item.__new__(Item))


@cython.final
cdef class Fifo:
    """add, get_nowait, done of a queue without clusters' turns, priorities, namespaces or delays."""
    cdef Core q
    cdef u32 head, tail
    cdef dict slots
    cdef list names
    cdef readonly double waited, worked

    def __cinit__(self):
        memset(&self.q, 0, sizeof(Core))
        self.q.recs_free = self.head = self.tail = NONE
        self.slots, self.names = {}, []

    def __dealloc__(self):
        cdef u32 i
        for i in range(self.q.recs_top):
            if self.q.recs[i].state != FREE:
                Py_DECREF(<object>self.q.recs[i].key)
        free(self.q.recs)
        free(self.q.clusters)
        free(self.q.keys.slots)

    def __len__(self):
        return self.q.ready

    def engage(self, str cluster):
        if len(self.names) == self.q.clusters_cap:
            self.q.clusters = <Cluster *>grow(self.q.clusters, &self.q.clusters_cap, len(self.names) + 1,
                                              sizeof(Cluster))
        memset(&self.q.clusters[len(self.names)], 0, sizeof(Cluster))
        self.slots[cluster] = len(self.names)
        self.names.append(cluster)

    cdef inline void push(self, u32 i, double now) noexcept:
        cdef Rec *r = &self.q.recs[i]
        r.state = READY
        r.t = now
        r.next = NONE
        if self.head == NONE:
            self.head = i
        else:
            self.q.recs[self.tail].next = i
        self.tail = i
        self.q.ready += 1

    def add(self, str cluster not None, str key not None) -> bool:
        cdef PyObject *found = PyDict_GetItem(self.slots, cluster)
        cdef u32 slot, hash, i
        if found == NULL:
            return False
        slot = <u32><object>found
        hash = key_hash(<PyObject *>key, slot)
        i = find_key(&self.q, slot, hash, <PyObject *>key)
        if i == NONE:
            i = new_rec(&self.q, slot, hash, <PyObject *>key, 0)
            self.push(i, fq_monotonic())
        elif self.q.recs[i].state == PROCESSING:
            self.q.recs[i].attempts = 1
        return True

    def get_nowait(self):
        cdef u32 i = self.head
        cdef Rec *r
        cdef Item item
        if i == NONE:
            return None
        item = Item.__new__(Item)
        r = &self.q.recs[i]
        fq_prefetch(&self.q.keys.slots[key_hash(r.key, r.cluster) & self.q.keys.mask])
        self.head = r.next
        if self.head != NONE:
            prefetch_rec(&self.q.recs[self.head])
        r.state = PROCESSING
        item.start = fq_monotonic()
        item.waited = item.start - r.t
        self.waited += item.waited
        item.cluster_ = <str>self.names[r.cluster]
        item.key_ = <str><object>r.key
        item.rec = i
        self.q.ready -= 1
        return item

    def done(self, Item item not None):
        cdef double now = fq_monotonic()
        cdef Rec *r = &self.q.recs[item.rec]
        self.worked += now - item.start
        if r.attempts:
            r.attempts = 0
            self.push(item.rec, now)
        else:
            r.state = IDLE
            drop_rec(&self.q, item.rec)
