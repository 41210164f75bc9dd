"""Lists and watches as they come in chunks: every byte is looked at once, however it is cut."""

cdef enum Phase:
    HEAD, ITEMS, TAIL, DONE, BROKEN

cdef enum Want:
    # What the envelope (the list's own object) expects next at depth 1.
    OPEN, KEY, COLON, VALUE, REST

cdef Py_ssize_t STEP = 4096   # envelope bytes taken from a chunk at a time


@cython.final
cdef class ListScanner:
    """Cuts the objects out of a list while it arrives.

    `field` is the array's name (b"rows" for a Table). Items keep their bytes; the list's metadata is read
    wherever it stands. Holds at most one unfinished item (`max_item` bytes) and the envelope
    (`max_envelope` bytes); SpliceError above that, and for anything that is no list. After an error it
    stays broken.
    """
    cdef readonly bytes head          # all before the array's '[' (or its null); None until it was reached
    cdef readonly str list_version    # "" until the metadata was read
    cdef readonly str continue_token
    cdef readonly object remaining    # remainingItemCount, None when absent
    cdef readonly Py_ssize_t count    # items handed out
    cdef bytes field
    cdef bytearray text, part
    cdef Phase phase
    cdef Want want
    cdef jb_state item
    cdef bint comma_next, item_next, first_key
    cdef Py_ssize_t depth, key_at, value_at, tail_at, max_item, max_envelope
    cdef bint in_string, escaped
    cdef bytes key

    def __init__(self, bytes field=b"items", Py_ssize_t max_item=16 << 20, Py_ssize_t max_envelope=8 << 20):
        self.field = field
        self.max_item = max_item
        self.max_envelope = max_envelope
        self.text = bytearray()
        self.part = bytearray()
        self.phase = HEAD
        self.want = OPEN
        self.list_version = self.continue_token = ""
        self.first_key = True

    def feed(self, chunk) -> list:
        """The items that are complete with this chunk, in order."""
        cdef Py_buffer view
        cdef list out = []
        cdef const uint8_t *p
        cdef const uint8_t *end
        PyObject_GetBuffer(chunk, &view, PyBUF_SIMPLE)
        try:
            p = <const uint8_t *>view.buf
            end = p + view.len
            while p < end:
                if self.phase == BROKEN:
                    raise SpliceError("the list was broken before")
                if self.phase == ITEMS:
                    p = self.read_items(p, end, out)
                elif self.phase == DONE:
                    p = jb_space(p, end)
                    if p < end:
                        raise SpliceError("bytes behind the list")
                else:
                    p = self.read_envelope(p, end)
        except:
            self.phase = BROKEN
            raise
        finally:
            PyBuffer_Release(&view)
        self.count += len(out)
        return out

    def finish(self) -> bytes:
        """The list's bytes behind the array's ']' (up to its own brace). SpliceError when the list is not complete."""
        if self.phase != DONE:
            raise SpliceError("the list is cut short")
        if self.head is None:
            raise SpliceError(f"no list: it has no {self.field.decode()!r}")
        return bytes(self.text[self.tail_at:])

    cdef const uint8_t *read_items(self, const uint8_t *p, const uint8_t *end, list out) except NULL:
        cdef const uint8_t *q
        cdef Py_ssize_t had
        while True:
            if self.item.depth:   # an item began in an earlier chunk
                q = jb_skip(p, end, &self.item)
                had = len(self.part)
                if had + ((end if q == NULL else q) - p) > self.max_item:
                    raise SpliceError(f"an item is longer than {self.max_item} bytes")
                self.part += (<const char *>p)[:(end if q == NULL else q) - p]
                if q == NULL:
                    return end
                out.append(bytes(self.part))
                self.part = bytearray()
                self.comma_next = True
                p = q
            p = jb_space(p, end)
            if p >= end:
                return end
            if p[0] == c'{' and not self.comma_next:
                self.item_next = False
                self.item.depth, self.item.in_string, self.item.escaped = 1, 0, 0
                q = jb_skip(p + 1, end, &self.item)
                if q == NULL:
                    self.part += (<const char *>p)[:end - p]
                    if end - p > self.max_item:
                        raise SpliceError(f"an item is longer than {self.max_item} bytes")
                    return end
                out.append((<const char *>p)[:q - p])
                self.comma_next = True
                p = q
            elif p[0] == c',' and self.comma_next:
                self.comma_next = False
                self.item_next = True
                p += 1
            elif p[0] == c']' and not self.item_next:
                self.phase = TAIL
                self.want = REST
                return p + 1
            else:
                raise SpliceError(f"not JSON behind item {self.count + len(out)} of the list")

    cdef const uint8_t *read_envelope(self, const uint8_t *p, const uint8_t *end) except NULL:
        """Takes a step's bytes; returns where the items (or the next step) begin."""
        cdef Py_ssize_t at = len(self.text), stop
        cdef Py_ssize_t taken = min(end - p, STEP)
        cdef const uint8_t *base
        self.text += (<const char *>p)[:taken]
        if len(self.text) > self.max_envelope:
            raise SpliceError(f"the list's own fields are longer than {self.max_envelope} bytes")
        base = <const uint8_t *>PyByteArray_AS_STRING(self.text)
        stop = self.read_fields(base, at, at + taken)
        if self.phase == ITEMS:
            self.head = bytes(self.text[:stop - 1])
            self.text = bytearray()
            self.tail_at = 0
        elif self.phase == DONE:
            del self.text[stop:]
        return p + (stop - at)

    cdef Py_ssize_t read_fields(self, const uint8_t *base, Py_ssize_t i, Py_ssize_t end) except -1:
        """The envelope, a byte at a time. Returns the offset behind what was used."""
        cdef uint8_t c
        while i < end:
            c = base[i]
            i += 1
            if self.in_string:
                if self.escaped:
                    self.escaped = False
                elif c == c'\\':
                    self.escaped = True
                elif c == c'"':
                    self.in_string = False
                    if self.depth == 1 and self.want == KEY:
                        self.key = plain_key(base[self.key_at:i])
                        self.want = COLON
            elif c == c' ' or c == c'\n' or c == c'\r' or c == c'\t':
                pass
            elif self.depth > 1:
                if c == c'"':
                    self.in_string = True
                elif c == c'{' or c == c'[':
                    self.depth += 1
                elif c == c'}' or c == c']':
                    self.depth -= 1
            elif self.read_top(base, c, i):
                return i
        return i

    cdef bint read_top(self, const uint8_t *base, uint8_t c, Py_ssize_t i) except -1:
        """One byte at depth 0 or 1, outside of strings, that ends at i. True: the phase is over."""
        if self.want == KEY and c == c'"':
            self.in_string = True
            self.first_key = False
            self.key_at = i - 1
        elif self.want == COLON and c == c':':
            self.want = VALUE
        elif self.want == VALUE and c not in b",:}]":
            self.want = REST
            self.value_at = i - 1
            if c == c'[' and self.head is None and self.key == self.field:
                self.phase = ITEMS
                return True
            self.in_string = c == c'"'
            self.depth += c == c'{' or c == c'['
        elif self.want == REST and c == c',':
            self.end_member(base, i - 1)
            self.want = KEY
        elif c == c'}' and (self.want == REST or self.want == KEY and self.first_key):
            if self.want == REST:
                self.end_member(base, i - 1)
            self.phase = DONE
            return True
        elif self.want == OPEN and c == c'{':
            self.want = KEY
            self.depth = 1
        elif self.want != REST or c in b"\"{[}]:":
            raise SpliceError("not JSON in the list's own fields")
        return False

    cdef end_member(self, const uint8_t *base, Py_ssize_t end):
        cdef bytes value
        if self.phase == TAIL and self.key == self.field and self.value_at >= 0:
            self.value_at = -1   # the array itself ended, its text is not here
            return
        if self.key == self.field and self.head is None:
            value = base[self.value_at:end]
            if value.strip() != b"null":
                raise SpliceError(f"{self.field.decode()!r} is no array")
            self.head = base[:self.value_at]
            self.tail_at = self.value_at + 4
        elif self.key == b"metadata":
            self.read_metadata(base[self.value_at:end])

    cdef read_metadata(self, bytes raw):
        value = decode(raw)
        if type(value) is not dict:
            return
        version = value.get("resourceVersion")
        self.list_version = "" if version is None else str(version)
        self.continue_token = string_or_empty(value, "continue")
        remaining = value.get("remainingItemCount")
        self.remaining = remaining if type(remaining) is int else None


cdef bytes plain_key(bytes raw):
    return raw[1:-1] if b"\\" not in raw else decode(raw).encode("utf-8", "surrogatepass")


def list_items(buf, bytes field=b"items"):
    """(head, [(start, end) of each item in buf], tail) of a complete list."""
    cdef ListScanner scanner = ListScanner(field)
    cdef Py_ssize_t at
    data = bytes(buf)
    items = scanner.feed(data)
    tail = scanner.finish()
    spans = []
    at = len(scanner.head)
    for item in items:
        at = data.index(item, at)
        spans.append((at, at + len(item)))
        at += len(item)
    return scanner.head, spans, tail


@cython.final
cdef class FrameSplitter:
    """Cuts a watch's newline-delimited frames. Holds one unfinished frame of at most `max_frame` bytes."""
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
        """The frames that are complete with this chunk, without their newline; empty lines are dropped."""
        cdef const char *p = PyBytes_AS_STRING(chunk)
        cdef const char *end = p + PyBytes_GET_SIZE(chunk)
        cdef const char *q
        out = []
        while p < end:
            q = <const char *>memchr(p, c'\n', end - p)
            if (end if q == NULL else q) - p + len(self.part) > self.max_frame:
                raise SpliceError(f"a frame is longer than {self.max_frame} bytes")
            if q == NULL:
                self.part += p[:end - p]
                break
            if len(self.part):
                self.part += p[:q - p]
                frame = bytes(self.part)
                self.part = bytearray()
            else:
                frame = p[:q - p]
            if not frame or frame.endswith(b"\r"):
                frame = frame.rstrip(b"\r")
            if frame:
                out.append(frame)
            p = q + 1
        return out
