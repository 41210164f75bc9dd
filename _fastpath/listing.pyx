"""Objects of several members' lists on their way into one: read, and merged by key."""
cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_Compare
from libc.stdint cimport uint64_t

from _fastpath.splice import SpliceError, table_row_object


cpdef uint64_t version_of(str text) except? 0:
    """A member's version, 0 where there is none; SpliceError for what Kubernetes never sends."""
    cdef uint64_t value = 0
    cdef Py_UCS4 c
    if len(text) > 19:
        raise SpliceError(f"resourceVersion {text[:40]!r} is too long")
    for c in text:
        if c < c'0' or c > c'9':
            raise SpliceError(f"resourceVersion {text[:40]!r} is no integer")
        value = value * 10 + <uint64_t>(<int>c - <int>c'0')
    return value


@cython.final
@cython.freelist(256)
cdef class Item:
    """One object of a member's list: `raw` holds it (a Table's row holds more). SpliceError for a version that is none."""

    def __init__(self, bytes raw not None, object meta, Py_ssize_t end):
        fill(self, raw, meta, end)


cdef int fill(Item item, bytes raw, object meta, Py_ssize_t end) except -1:
    item.raw = raw
    item.meta = meta
    item.end = end
    item.namespace = meta.namespace
    item.name = meta.name
    item.version = version_of(meta.version)
    item.key = item.namespace + "/" + item.name if item.namespace else item.name
    return 0


def read_items(list cut not None, scan) -> list:
    """The elements of a list as items; `scan` finds an object's metadata."""
    cdef list out = []
    cdef Item item
    cdef bytes raw
    for raw in cut:
        item = Item.__new__(Item)
        fill(item, raw, scan(raw), len(raw))
        out.append(item)
    return out


def read_rows(list cut not None, scan) -> list:
    """The elements of a Table's `rows` as items."""
    cdef list out = []
    cdef Item item
    cdef bytes raw
    for raw in cut:
        item = Item.__new__(Item)
        start, end = table_row_object(raw)
        fill(item, raw, scan(raw, start), end)
        out.append(item)
    return out


@cython.final
cdef class Merger:
    """Merges ordered lists of items by key, equal keys by the source's number.

    `lacks` are the sources of which more must be fed, or whose end must be told, before anything can be given. A heap of
    those that have something; an item costs a few comparisons of keys.
    """
    cdef list buffers
    cdef readonly set lacks
    cdef Py_ssize_t *at
    cdef Py_ssize_t *heap
    cdef Py_ssize_t ready

    def __cinit__(self, Py_ssize_t sources):
        self.buffers = [[] for _ in range(sources)]
        self.lacks = set(range(sources))
        self.at = <Py_ssize_t *>PyMem_Malloc(max(1, sources) * sizeof(Py_ssize_t))
        self.heap = <Py_ssize_t *>PyMem_Malloc(max(1, sources) * sizeof(Py_ssize_t))
        if self.at == NULL or self.heap == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.at)
        PyMem_Free(self.heap)

    cdef bint before(self, Py_ssize_t one, Py_ssize_t other) except -1:
        cdef Item a = <Item>(<list>self.buffers[one])[self.at[one]]
        cdef Item b = <Item>(<list>self.buffers[other])[self.at[other]]
        cdef int order = PyUnicode_Compare(a.key, b.key)
        return order < 0 or order == 0 and one < other

    cdef int sift(self, Py_ssize_t place) except -1:
        """Move what stands at `place` down to where it belongs."""
        cdef Py_ssize_t moved = self.heap[place], child
        while True:
            child = 2 * place + 1
            if child >= self.ready:
                break
            if child + 1 < self.ready and self.before(self.heap[child + 1], self.heap[child]):
                child += 1
            if not self.before(self.heap[child], moved):
                break
            self.heap[place] = self.heap[child]
            place = child
        self.heap[place] = moved
        return 0

    def feed(self, Py_ssize_t source, items) -> None:
        """Append a source's next items."""
        cdef list had = <list>self.buffers[source]
        cdef Py_ssize_t place, parent
        cdef Item item
        for item in items:
            item.source = source
        if source not in self.lacks:
            had.extend(items)
            return
        if not items:
            return
        self.buffers[source] = list(items)
        self.at[source] = 0
        self.lacks.remove(source)
        place = self.ready
        self.ready += 1
        self.heap[place] = source
        while place > 0:   # up to where it belongs
            parent = (place - 1) // 2
            if not self.before(source, self.heap[parent]):
                break
            self.heap[place] = self.heap[parent]
            self.heap[parent] = source
            place = parent

    def end(self, Py_ssize_t source) -> None:
        """Nothing more comes of a source."""
        self.lacks.discard(source)

    def take(self, Py_ssize_t most) -> list:
        """The next items, at most `most`; fewer where a source lacks, [] at the end too."""
        cdef list out = [], items
        cdef Py_ssize_t source, i
        while self.ready and not self.lacks and len(out) < most:
            source = self.heap[0]
            items = <list>self.buffers[source]
            i = self.at[source]
            out.append(items[i])
            items[i] = None   # what was given is not held
            self.at[source] = i + 1
            if i + 1 == len(items):
                self.buffers[source] = []
                self.at[source] = 0
                self.ready -= 1
                self.heap[0] = self.heap[self.ready]
                self.lacks.add(source)
            if self.ready:
                self.sift(0)
        return out

    def left(self, Py_ssize_t source) -> list:
        """What is left of what a source was fed."""
        return (<list>self.buffers[source])[self.at[source]:]

    @property
    def waiting(self) -> bool:
        """Is anything left?"""
        return self.ready > 0
