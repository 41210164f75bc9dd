"""Ranges of one buffer to replace, and the one copy that does it: JSON and protobuf alike."""

cdef enum:
    EDITS = 32

cdef struct Edit:
    Py_ssize_t a
    Py_ssize_t b
    const uint8_t *p
    Py_ssize_t n


cdef struct Edits:
    int count
    Py_ssize_t growth
    Edit items[EDITS]


cdef bint add_edit(Edits *e, Py_ssize_t a, Py_ssize_t b, const uint8_t *p, Py_ssize_t n) noexcept nogil:
    """Keeps them ordered by offset. False when there is no room."""
    cdef int i = e.count
    if i == EDITS:
        return False
    while i > 0 and e.items[i - 1].a > a:
        e.items[i] = e.items[i - 1]
        i -= 1
    e.items[i].a = a
    e.items[i].b = b
    e.items[i].p = p
    e.items[i].n = n
    e.count += 1
    e.growth += n - (b - a)
    return True


cdef bytes apply_edits(const uint8_t *base, Py_ssize_t start, Py_ssize_t end, const Edits *e):
    cdef bytes out
    cdef uint8_t *to
    cdef Py_ssize_t at = start
    cdef int i
    for i in range(e.count):   # a Meta of another buffer must not make us write out of bounds
        if e.items[i].a < at or e.items[i].b < e.items[i].a or e.items[i].b > end:
            raise broken(at, "not the buffer it was found in")
        at = e.items[i].b
    at = start
    out = PyBytes_FromStringAndSize(NULL, end - start + e.growth)
    to = <uint8_t *>PyBytes_AS_STRING(out)
    for i in range(e.count):
        memcpy(to, base + at, e.items[i].a - at)
        to += e.items[i].a - at
        memcpy(to, e.items[i].p, e.items[i].n)
        to += e.items[i].n
        at = e.items[i].b
    memcpy(to, base + at, end - at)
    return out


cdef check_version(bytes version):
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(version)
    cdef Py_ssize_t i, n = PyBytes_GET_SIZE(version)
    for i in range(n):
        if p[i] < c'0' or p[i] > c'9':
            raise ValueError(f"version {version!r}: not a decimal number")
    if n == 0:
        raise ValueError("version is empty")
