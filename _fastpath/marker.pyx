"""Version markers: what the clock remembers of one state of one object, in 80 bytes and the name.

A `Marker` is index entry and log entry at once. It is immutable once the clock has stamped it, but for `prev`,
which the clock cuts when the state before falls out of the window. No cycle can be made of markers (`prev` is
older), so they are left out of garbage collection: a million of them cost a collector's run nothing.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject_Hash
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

from _fastpath.listing cimport Item

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o)
    const char *PyUnicode_AsUTF8AndSize(object value, Py_ssize_t *size) except NULL

import sys

# How a put came about.
EVENT, DIFF, GAP, CLASH, LEAVE = range(5)
KINDS = ("event", "diff", "gap", "clash", "leave")

cdef tuple TYPES = ("HIDDEN", "ADDED", "MODIFIED", "DELETED")
cdef uint8_t LAYOUT = 1
cdef uint64_t TEXT_UID = 0xFFFFFFFFFFFFFFFF
cdef enum:
    SWEEP = 1024

# What many markers have in common. Swept when it has doubled: what only the table holds goes.
cdef dict _traits = {}
cdef Py_ssize_t _limit = SWEEP
# uids that are no UUID (rare); they stay.
cdef list _uid_texts = []
cdef dict _uid_numbers = {}

NO_LABELS = {}


cdef enum:
    # Of Marker.state, below `since`.
    DELETED = 0x01
    DELETING = 0x02
    SHOWN_AT = 2     # two bits
    SHOWN = 0x0C
    KIND_AT = 4      # three bits
    KIND = 0x70
    SINCE_AT = 8


@cython.final
@cython.no_gc
cdef class Traits:
    """Cluster, incarnation, namespace and labels, shared by all markers that have them in common."""
    cdef readonly str cluster
    cdef readonly str incarnation
    cdef readonly str namespace
    cdef readonly dict labels


cdef Traits traits_of(str cluster, str incarnation, str namespace, dict labels):
    global _limit
    cdef list parts = [cluster, incarnation, namespace]
    cdef Traits found
    for key, value in labels.items():   # one flat tuple: with many sets of labels it is most of what they take
        parts.append(key)
        parts.append(value)
    cdef tuple wanted = tuple(parts)
    found = _traits.get(wanted)
    if found is not None:
        return found
    if len(_traits) >= _limit:
        # getrefcount: the table's, the loop's and its own.
        for old in [k for k, v in _traits.items() if sys.getrefcount(v) <= 3]:
            del _traits[old]
        _limit = max(<Py_ssize_t>SWEEP, 2 * len(_traits))
    found = Traits.__new__(Traits)
    wanted = tuple([sys.intern(one) for one in parts])
    found.cluster, found.incarnation, found.namespace = wanted[:3]
    found.labels = dict(zip(wanted[3::2], wanted[4::2])) if labels else NO_LABELS
    _traits[wanted] = found
    return found


def shared_values() -> int:
    """How many sets of (cluster, incarnation, namespace, labels) are kept for sharing now."""
    return len(_traits)


include "marker_codec.pxi"


@cython.final
@cython.no_gc
cdef class Marker:
    cdef Traits traits
    cdef readonly str name
    cdef uint64_t uid_high
    cdef uint64_t uid_low
    cdef readonly uint64_t version
    cdef readonly uint64_t fleet
    cdef uint64_t state          # `since`, which is below 2^53, and the flags below it
    cdef readonly Marker prev

    def __init__(self, str cluster not None, str incarnation not None, str namespace not None, str name not None,
                 str uid not None, uint64_t version, dict labels=None, *, bint deleted=False, bint deleting=False,
                 uint8_t kind=0):
        self.traits = traits_of(cluster, incarnation, namespace, NO_LABELS if labels is None else labels)
        self.name = name
        set_uid(self, uid)
        self.version = version
        self.state = flags_of(kind, deleted, deleting)

    def __dealloc__(self):
        # A long history would be freed recursively, once per state: unlink it step by step instead.
        cdef Marker one = self.prev, older
        self.prev = None
        while one is not None and Py_REFCNT(<PyObject *>one) == 1:
            older = one.prev
            one.prev = None
            one = older
            older = None

    @property
    def cluster(self) -> str:
        return self.traits.cluster

    @property
    def incarnation(self) -> str:
        return self.traits.incarnation

    @property
    def namespace(self) -> str:
        return self.traits.namespace

    @property
    def uid(self) -> str:
        if self.uid_high == TEXT_UID:
            return _uid_texts[self.uid_low]
        return format_uuid(self.uid_high, self.uid_low)

    @property
    def labels(self) -> dict:
        return self.traits.labels

    @property
    def since(self) -> int:
        return self.state >> SINCE_AT

    @property
    def kind(self) -> int:
        return (self.state & KIND) >> KIND_AT

    @property
    def deleted(self) -> bool:
        return self.state & DELETED != 0

    @property
    def deleting(self) -> bool:
        return self.state & DELETING != 0

    @property
    def type(self) -> str:
        return TYPES[(self.state & SHOWN) >> SHOWN_AT]

    @property
    def marker(self) -> Marker:
        return self

    @property
    def before(self) -> Marker:
        return self.prev if (self.state & SHOWN) >> SHOWN_AT >= 2 else None

    def same_object(self, Marker other not None) -> bool:
        """Same uid."""
        return self.uid_high == other.uid_high and self.uid_low == other.uid_low

    def same_state(self, Marker other not None) -> bool:
        """Same incarnation, uid, member version and deleted flag."""
        return (self.version == other.version and self.uid_high == other.uid_high
                and self.uid_low == other.uid_low and (self.state ^ other.state) & DELETED == 0
                and self.traits.incarnation == other.traits.incarnation)

    def rewritten(self, uint8_t kind, *, deleted=None, version=None, str incarnation=None) -> Marker:
        """A marker of the same object for another put, not stamped yet; `since` is kept unless it is deleted."""
        cdef Marker out = Marker.__new__(Marker)
        cdef bint gone = self.deleted if deleted is None else bool(deleted)
        out.traits = self.traits
        if incarnation is not None:
            out.traits = traits_of(self.traits.cluster, incarnation, self.traits.namespace, self.traits.labels)
        out.name = self.name
        out.uid_high = self.uid_high
        out.uid_low = self.uid_low
        out.version = self.version if version is None else <uint64_t>version
        out.state = flags_of(kind, gone, self.state & DELETING != 0)
        if not gone:
            out.state |= self.state >> SINCE_AT << SINCE_AT
        return out

    def keep_since(self, uint64_t since):
        """The fleet version of the object's ADDED; 0: this very put is it."""
        put_since(self, since)

    def stamp(self, uint64_t fleet, int shown_as, Marker prev):
        """Called once by the clock's state, when the put is known to be in etcd."""
        self.fleet = fleet
        if self.state >> SINCE_AT == 0:
            put_since(self, fleet)
        self.state = self.state & ~<uint64_t>SHOWN | <uint64_t>(shown_as << SHOWN_AT & SHOWN)
        self.prev = prev
        if prev is not None:
            # One name object for all states; callers look the state before up by (namespace, name).
            self.name = prev.name

    def cut(self):
        """Forget the state before."""
        self.prev = None

    def encode(self, int index) -> bytes:
        """The value in etcd; `index` is the put's place in its transaction."""
        cdef Writer w = Writer.__new__(Writer)
        write_value(w, self, index)
        return w.done()

    def __repr__(self) -> str:
        return (f"<Marker {self.cluster}:{self.namespace}/{self.name} version={self.version} fleet={self.fleet}"
                f" {self.type}{' deleted' if self.deleted else ''} {KINDS[self.kind]}>")


cdef inline uint64_t flags_of(uint8_t kind, bint deleted, bint deleting) noexcept nogil:
    return <uint64_t>(kind & 7) << KIND_AT | (DELETED if deleted else 0) | (DELETING if deleting else 0)


cdef inline int put_since(Marker one, uint64_t since) except -1:
    if since >> 56:
        raise OverflowError(f"{since} is no fleet version")
    one.state = since << SINCE_AT | one.state & 0xFF
    return 0


cdef int write_value(Writer w, Marker one, int index) except -1:
    """As `encode`. No method: those would cost every marker a pointer."""
    cdef uint64_t high = 0, low = 0, count = 0
    cdef str incarnation = one.traits.incarnation
    cdef bint text_incarnation = True
    cdef Py_ssize_t slash = incarnation.find("/")
    if slash == 36 and parse_uuid(incarnation[:36], &high, &low):
        digits = incarnation[37:]
        if digits.isdigit() and len(digits) < 10 and str(int(digits)) == digits:
            count = int(digits)
            text_incarnation = False
    w.byte(LAYOUT)
    w.byte(<uint8_t>(one.state & (DELETED | DELETING)) | <uint8_t>(one.state >> KIND_AT & 7) << 2
           | (0x20 if one.uid_high == TEXT_UID else 0) | (0x40 if text_incarnation else 0))
    w.byte(<uint8_t>index)
    if one.uid_high == TEXT_UID:
        w.text(_uid_texts[one.uid_low])
    else:
        w.fixed(one.uid_high)
        w.fixed(one.uid_low)
    if text_incarnation:
        w.text(incarnation)
    else:
        w.fixed(high)
        w.fixed(low)
        w.varint(count)
    w.varint(one.version)
    w.varint(one.state >> SINCE_AT)
    w.varint(len(one.traits.labels))
    for key, value in one.traits.labels.items():
        w.text(key)
        w.text(value)
    return 0


cdef set_uid(Marker marker, str uid):
    if parse_uuid(uid, &marker.uid_high, &marker.uid_low):
        return
    number = _uid_numbers.get(uid)
    if number is None:
        number = _uid_numbers[uid] = len(_uid_texts)
        _uid_texts.append(uid)
    marker.uid_high = TEXT_UID
    marker.uid_low = number


def decode_marker(str cluster not None, str namespace not None, str name not None, bytes value not None):
    """(index, Marker that is not stamped yet) of a value in etcd; ValueError for what is no such value."""
    cdef Reader r = Reader.__new__(Reader)
    cdef Marker out = Marker.__new__(Marker)
    cdef int flags, index, i
    cdef uint64_t high, low
    cdef dict labels
    r.p = <const uint8_t *>PyBytes_AS_STRING(value)
    r.end = r.p + PyBytes_GET_SIZE(value)
    if r.byte() != LAYOUT:
        raise ValueError(f"a marker of layout {value[0]}; this version knows {LAYOUT}")
    flags = r.byte()
    index = r.byte()
    if flags & 0x20:
        set_uid(out, r.text())
    else:
        out.uid_high = r.fixed()
        out.uid_low = r.fixed()
    if flags & 0x40:
        incarnation = r.text()
    else:
        high = r.fixed()
        low = r.fixed()
        incarnation = f"{format_uuid(high, low)}/{r.varint()}"
    out.version = r.varint()
    since = r.varint()
    labels = {}
    for i in range(<int>r.varint()):
        key = r.text()
        labels[key] = r.text()
    out.traits = traits_of(cluster, incarnation, namespace, labels)
    out.name = name
    out.state = flags_of(flags >> 2 & 7, flags & 1, flags & 2)
    put_since(out, since)
    return index, out


include "marker_puts.pxi"


include "marker_names.pxi"


def visible(list entries not None, Py_ssize_t start, Py_ssize_t end):
    """The entries of entries[start:end] that merged views show. O(end - start)."""
    cdef list out = []
    cdef Py_ssize_t i
    cdef Marker one
    for i in range(start, min(end, len(entries))):
        one = <Marker>entries[i]
        if one.state & SHOWN:
            out.append(one)
    return out


def first_after(list entries not None, Py_ssize_t start, uint64_t fleet):
    """Index of the first entry at or behind `start` whose fleet version is above `fleet`. O(log n)."""
    cdef Py_ssize_t low = start, high = len(entries), middle
    while low < high:
        middle = (low + high) // 2
        if (<Marker>entries[middle]).fleet > fleet:
            high = middle
        else:
            low = middle + 1
    return low


def of_cluster(markers, str cluster not None):
    """The live markers of one cluster among `markers`. O(n)."""
    cdef Marker one
    cdef list out = []
    for one in markers:
        if not one.state & DELETED and (one.traits.cluster is cluster or one.traits.cluster == cluster):
            out.append(one)
    return out


def numbers(dict spaces not None, list items not None, list clusters not None, list incarnations not None, uint64_t at):
    """The fleet version of each item of members' lists, 0 for those that must be judged one by one.

    `spaces` are an index's tables by namespace; `clusters` and `incarnations` those of the items' sources. A number is given
    where one marker alone holds the key, and is that very state (cluster, incarnation, uid, member version, alive), and not
    newer than `at`. O(1) an item.
    """
    cdef list out = []
    cdef Item item
    cdef Marker one
    cdef NameTable table = None
    cdef str namespace = None, incarnation
    cdef uint64_t high, low, number
    cdef PyObject *slot
    for item in items:
        number = 0
        if namespace is None or item.namespace != namespace:
            namespace = item.namespace
            table = spaces.get(namespace)
        slot = NULL if table is None else table.slots[table.place(item.name)]
        if slot != NULL and type(<object>slot) is Marker:
            one = <Marker>slot
            incarnation = incarnations[item.source]
            if (one.fleet <= at and one.version == item.version and not one.state & DELETED
                    and same_text(one.traits.cluster, clusters[item.source])
                    and same_text(one.traits.incarnation, incarnation)
                    and parse_uuid(item.meta.uid, &high, &low) and one.uid_high == high and one.uid_low == low):
                number = one.fleet
        out.append(number)
    return out


cdef inline bint same_text(str one, str other):
    return one is other or one == other
