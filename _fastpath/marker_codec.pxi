# How values are stored: uids as two numbers, and a writer and a reader of variable-length fields.

cdef inline int hex_digit(uint8_t c) noexcept nogil:
    if c'0' <= c <= c'9':
        return c - c'0'
    if c'a' <= c <= c'f':
        return c - c'a' + 10
    return -1


cdef bint parse_uuid(str text, uint64_t *high, uint64_t *low):
    """Only the canonical lower-case form: anything else would not come back as it was."""
    cdef bytes raw
    cdef const uint8_t *p
    cdef int i, digit, seen = 0
    cdef uint64_t value[2]
    if len(text) != 36 or not text.isascii():
        return False
    raw = text.encode("ascii")
    p = <const uint8_t *>PyBytes_AS_STRING(raw)
    value[0] = value[1] = 0
    for i in range(36):
        if i in (8, 13, 18, 23):
            if p[i] != c'-':
                return False
            continue
        digit = hex_digit(p[i])
        if digit < 0:
            return False
        value[seen >> 4] = value[seen >> 4] << 4 | <uint64_t>digit
        seen += 1
    high[0] = value[0]
    low[0] = value[1]
    return value[0] != TEXT_UID


cdef str format_uuid(uint64_t high, uint64_t low):
    cdef char out[36]
    cdef int i, seen = 0
    cdef uint64_t value
    for i in range(36):
        if i in (8, 13, 18, 23):
            out[i] = c'-'
            continue
        value = high if seen < 16 else low
        out[i] = b"0123456789abcdef"[value >> (4 * (15 - (seen & 15))) & 15]
        seen += 1
    return PyUnicode_DecodeUTF8(out, 36, NULL)


@cython.final
cdef class Writer:
    """A buffer that grows; kept and used again for one value after the other."""
    cdef uint8_t *data
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int need(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room
        cdef void *grown
        if self.size + more > self.room:
            room = max(2 * self.room, self.size + more, <Py_ssize_t>256)
            grown = PyMem_Realloc(self.data, room)
            if grown == NULL:
                raise MemoryError
            self.data = <uint8_t *>grown
            self.room = room
        return 0

    cdef int byte(self, uint8_t value) except -1:
        self.need(1)
        self.data[self.size] = value
        self.size += 1
        return 0

    cdef int varint(self, uint64_t value) except -1:
        self.need(10)
        while value >= 0x80:
            self.data[self.size] = <uint8_t>(value & 0x7F | 0x80)
            self.size += 1
            value >>= 7
        self.data[self.size] = <uint8_t>value
        self.size += 1
        return 0

    cdef int fixed(self, uint64_t value) except -1:
        cdef int shift
        self.need(8)
        for shift in range(56, -8, -8):
            self.data[self.size] = <uint8_t>(value >> shift & 0xFF)
            self.size += 1
        return 0

    cdef int bytes_(self, const void *p, Py_ssize_t length) except -1:
        self.need(length)
        memcpy(self.data + self.size, p, length)
        self.size += length
        return 0

    cdef int text(self, str value) except -1:
        cdef Py_ssize_t length
        cdef const char *p = PyUnicode_AsUTF8AndSize(value, &length)
        self.varint(length)
        return self.bytes_(p, length)

    cdef bytes done(self):
        return PyBytes_FromStringAndSize(<char *>self.data, self.size)


cdef class Reader:
    cdef const uint8_t *p
    cdef const uint8_t *end

    cdef int byte(self) except -1:
        if self.p >= self.end:
            raise ValueError("a stored value is cut short")
        cdef int value = self.p[0]
        self.p += 1
        return value

    cdef uint64_t varint(self) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t value = 0
        cdef int shift = 0, one
        while True:
            one = self.byte()
            if shift > 63:
                raise ValueError("a stored number is too long")
            value |= <uint64_t>(one & 0x7F) << shift
            if not one & 0x80:
                return value
            shift += 7

    cdef uint64_t fixed(self) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t value = 0
        cdef int i
        for i in range(8):
            value = value << 8 | <uint64_t>self.byte()
        return value

    cdef str text(self):
        cdef uint64_t length = self.varint()
        if length > <uint64_t>(self.end - self.p):
            raise ValueError("a stored value is cut short")
        cdef str out = PyUnicode_DecodeUTF8(<const char *>self.p, <Py_ssize_t>length, NULL)
        self.p += length
        return out
