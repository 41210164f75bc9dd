"""Lists and watches as they come in chunks: every byte is looked at once, however it is cut."""

cdef enum Phase:
    MAGIC_NEXT, OUTER, LIST, BROKEN


@cython.final
cdef class ListScanner:
    """Cuts the objects' messages out of a list (magic, runtime.Unknown, a list: field 1 ListMeta, 2 items).

    Holds at most one unfinished item (`max_item` bytes). SpliceError above that, and for anything that is no list.
    After an error it stays broken.
    """
    cdef readonly bytes head          # b"" once the items begin; None until then
    cdef readonly str list_version    # "" until the metadata was read
    cdef readonly str continue_token
    cdef readonly object remaining    # remainingItemCount, None when absent
    cdef readonly Py_ssize_t count    # items handed out
    cdef readonly str kind            # of the list
    cdef readonly str api_version
    cdef bytearray part
    cdef Py_ssize_t need              # bytes that `part` must have before it is looked at
    cdef Py_ssize_t left              # of the list's message
    cdef Py_ssize_t max_item
    cdef Phase phase
    cdef bint seen

    def __init__(self, bytes field=b"items", Py_ssize_t max_item=16 << 20):
        if field != b"items":
            raise ValueError("Tables are never protobuf")
        self.part = bytearray()
        self.phase = MAGIC_NEXT
        self.max_item = max_item
        self.list_version = self.continue_token = self.kind = self.api_version = ""

    def feed(self, chunk) -> list:
        """The items that are complete with this chunk, in order."""
        cdef Py_buffer view
        cdef list out = []
        PyObject_GetBuffer(chunk, &view, PyBUF_SIMPLE)
        try:
            if self.phase == BROKEN:
                raise SpliceError("the list was broken before")
            self.take(<const uint8_t *>view.buf, <const uint8_t *>view.buf + view.len, out)
        except:
            self.phase = BROKEN
            raise
        finally:
            PyBuffer_Release(&view)
        self.count += len(out)
        return out

    def finish(self) -> bytes:
        """Nothing stands behind the items that anybody needs. SpliceError when the list is not complete."""
        if self.phase != OUTER or not self.seen or len(self.part):
            raise SpliceError("the list is cut short")
        return b""

    cdef int take(self, const uint8_t *p, const uint8_t *end, list out) except -1:
        cdef Py_ssize_t used, more
        cdef const uint8_t *held
        while p < end:
            if len(self.part) == 0:
                used = self.step(p, end, out)
                p += used
                if used == 0:
                    self.part += (<const char *>p)[:end - p]
                    return 0
                continue
            more = min(self.need - len(self.part), end - p)
            self.part += (<const char *>p)[:more]
            p += more
            if len(self.part) < self.need:
                return 0
            held = <const uint8_t *>PyByteArray_AS_STRING(self.part)
            used = self.step(held, held + len(self.part), out)
            if used:   # all of it: no more was taken than the record needs
                self.part = bytearray()
        return 0

    cdef Py_ssize_t step(self, const uint8_t *p, const uint8_t *end, list out) except -1:
        """Take one record; returns the bytes used, 0 when `need` bytes are wanted first."""
        cdef Rec r
        cdef int got
        cdef Py_ssize_t size, here
        if self.phase == MAGIC_NEXT:
            if end - p < 4:
                self.need = 4
                return 0
            if memcmp(p, b"k8s\0", 4) != 0:
                raise SpliceError("it does not begin as Kubernetes' protobuf does")
            self.phase = OUTER
            return 4
        here = end - p
        if self.phase == LIST and here > self.left:
            here = self.left
        got = read_head(p, p + here, &r)
        if got < 0 or (got == 0 and self.phase == LIST and here == self.left):
            raise SpliceError(f"not protobuf behind item {self.count + len(out)} of the list")
        if got == 0:
            self.need = end - p + 1
            return 0
        if self.phase == OUTER and r.number == 2 and r.wire == LEN:
            return self.begin(&r)
        size = r.end - r.start
        if size > self.max_item or (self.phase == LIST and size > self.left):
            raise SpliceError(f"a field of {size} bytes: longer than {self.max_item}, or than the list")
        if r.end > end:
            self.need = size
            return 0
        if self.phase == LIST:
            self.list_field(&r, out)
        elif r.number == 1 and r.wire == LEN:
            if self.kind or self.api_version:
                raise SpliceError("an envelope of two types")
            self.api_version, self.kind = entry_of(r.val, r.end)
        elif r.number == 3 and r.wire == LEN and r.end != r.val:
            raise SpliceError("the list's content is encoded")
        return size

    cdef Py_ssize_t begin(self, Rec *r) except -1:
        """The list's own message begins."""
        if self.seen:
            raise SpliceError("an envelope of two objects")
        if not self.kind.endswith("List"):
            raise SpliceError(f"no list: {self.kind or 'no kind'!r}")
        self.seen = True
        self.left = r.end - r.val
        if self.left:
            self.phase = LIST
        else:
            self.head = b""
        return r.val - r.start

    cdef int list_field(self, Rec *r, list out) except -1:
        self.left -= r.end - r.start
        if r.number == 2 and r.wire == LEN:
            self.head = b""
            out.append((<const char *>r.val)[:r.end - r.val])
        elif r.number == 1 and r.wire == LEN:
            self.read_metadata((<const char *>r.val)[:r.end - r.val])
        if self.left == 0:
            self.head = b""
            self.phase = OUTER
        return 0

    cdef read_metadata(self, bytes raw):
        for number, wire, payload, whole in records_of(raw):
            if number == 2 and wire == LEN:
                self.list_version = decoded(payload)
            elif number == 3 and wire == LEN:
                self.continue_token = decoded(payload)
            elif number == 4 and wire == VARINT:
                self.remaining = number_of(whole)


cdef object number_of(bytes whole):
    cdef Rec r
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(whole)
    return r.num if next_record(p, p + PyBytes_GET_SIZE(whole), &r) == 1 else None


@cython.final
cdef class FrameSplitter:
    """Cuts a watch's frames, each behind its length. Holds one unfinished frame of at most `max_frame` bytes."""
    cdef bytearray part
    cdef Py_ssize_t max_frame

    def __init__(self, Py_ssize_t max_frame=16 << 20):
        self.part = bytearray()
        self.max_frame = max_frame

    @property
    def pending(self) -> int:
        """Bytes of the unfinished frame: not 0 at the end of a stream means that it was cut."""
        return len(self.part)

    def feed(self, bytes chunk not None) -> list:
        """The frames that are complete with this chunk, without their length; empty ones are dropped."""
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(chunk)
        cdef const uint8_t *end = p + PyBytes_GET_SIZE(chunk)
        cdef const uint8_t *held
        cdef Py_ssize_t want, more
        out = []
        while p < end:
            if len(self.part) == 0 and end - p >= 4:
                want = 4 + self.size(p)
                if end - p >= want:
                    if want > 4:
                        out.append((<const char *>p)[4:want])
                    p += want
                    continue
            want = 4
            if len(self.part) >= 4:
                held = <const uint8_t *>PyByteArray_AS_STRING(self.part)
                want = 4 + self.size(held)
            more = min(want - len(self.part), end - p)
            self.part += (<const char *>p)[:more]
            p += more
            if len(self.part) == want and want >= 4:
                held = <const uint8_t *>PyByteArray_AS_STRING(self.part)
                if want > 4 or self.size(held) == 0:
                    if want > 4:
                        out.append(bytes(self.part[4:]))
                    self.part = bytearray()
        return out

    cdef Py_ssize_t size(self, const uint8_t *p) except -1:
        cdef Py_ssize_t n = (<Py_ssize_t>p[0] << 24) | (p[1] << 16) | (p[2] << 8) | p[3]
        if n > self.max_frame:
            raise SpliceError(f"a frame of {n} bytes: longer than {self.max_frame}")
        return n
