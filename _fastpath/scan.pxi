"""Finding an object's metadata: offsets into the caller's buffer, strings only on demand."""

cdef struct Span:
    # Half-open range in the buffer; b == 0 means absent (no value ends at offset 0).
    Py_ssize_t a
    Py_ssize_t b


cdef struct Fields:
    Py_ssize_t open        # metadata's '{'
    Py_ssize_t close       # its '}'; 0 while `next` is set
    Py_ssize_t first       # first member's key, == close when metadata is empty
    Py_ssize_t next        # behind the last member that was read, when reading stopped early; else 0
    Span name
    Span namespace
    Span uid
    Span version
    Span labels
    Span annotations
    Span owners
    Span managed
    bint deleting


Owner = namedtuple("Owner", ("uid", "api_version", "kind", "name"))


cdef object broken(Py_ssize_t at, str what="not JSON, or cut short"):
    return SpliceError(f"{what} (near byte {at})")


cdef inline bint is_null(const uint8_t *base, Span s) noexcept nogil:
    return s.b - s.a == 4 and memcmp(base + s.a, b"null", 4) == 0


cdef str text_of(const uint8_t *base, Span s):
    """The str of a string, number or null value ("" for null and absent)."""
    cdef const uint8_t *p
    cdef Py_ssize_t n
    if s.b == 0 or is_null(base, s):
        return ""
    p = base + s.a
    n = s.b - s.a
    try:
        if p[0] != c'"':
            return PyUnicode_DecodeUTF8(<const char *>p, n, NULL)
        if memchr(p, c'\\', n) == NULL:
            return PyUnicode_DecodeUTF8(<const char *>p + 1, n - 2, NULL)
        return json.loads(p[:n])
    except ValueError as error:
        raise broken(s.a, "a string is no JSON") from error


cdef inline void set_once(Span *s, const uint8_t *base, const uint8_t *a, const uint8_t *b) noexcept nogil:
    if s.b == 0:
        s.a = a - base
        s.b = b - base


cdef void keep_field(Fields *f, const uint8_t *base, const jb_walk *w) noexcept nogil:
    """w->val .. w->p is a value directly under metadata. The first of a repeated key wins."""
    cdef Span *s = NULL
    cdef Py_ssize_t n = w.key_len
    cdef const char *k = w.key
    if n == 4 and memcmp(k, b"name", 4) == 0:
        s = &f.name
    elif n == 3 and memcmp(k, b"uid", 3) == 0:
        s = &f.uid
    elif n == 6 and memcmp(k, b"labels", 6) == 0:
        s = &f.labels
    elif n == 9 and memcmp(k, b"namespace", 9) == 0:
        s = &f.namespace
    elif n == 11 and memcmp(k, b"annotations", 11) == 0:
        s = &f.annotations
    elif n == 13 and memcmp(k, b"managedFields", 13) == 0:
        s = &f.managed
    elif n == 15 and memcmp(k, b"resourceVersion", 15) == 0:
        s = &f.version
    elif n == 15 and memcmp(k, b"ownerReferences", 15) == 0:
        s = &f.owners
    elif n == 17 and memcmp(k, b"deletionTimestamp", 17) == 0:
        f.deleting = w.val[0] != c'n'
        return
    if s != NULL and s.b == 0:
        s.a = w.val - base
        s.b = w.p - base


cdef const uint8_t *read_members(Fields *f, const uint8_t *base, jb_walk *w, bint lazy) noexcept nogil:
    """Returns the byte behind metadata, with `lazy` perhaps an earlier one; NULL when it is cut short."""
    cdef int more
    while True:
        more = jb_walk_next(w)
        if more <= 0:
            break
        if f.first == 0:
            f.first = w.raw - base
        if jb_walk_skip(w) < 0:
            return NULL
        keep_field(f, base, w)
        if lazy and f.annotations.b and f.version.b and f.uid.b and f.name.b:
            f.next = w.p - base
            return w.p
    if more < 0:
        return NULL
    f.next = 0
    f.close = w.p - base
    if f.first == 0:
        f.first = f.close
    return w.p + 1


cdef const uint8_t *read_metadata(
    Fields *f, const uint8_t *base, const uint8_t *p, const uint8_t *end, bint lazy
) noexcept nogil:
    """p stands on metadata's value. Returns as `read_members`."""
    cdef jb_walk w
    if jb_walk_start(&w, p, end) < 0:
        return NULL
    f.open = p - base
    f.first = 0
    return read_members(f, base, &w, lazy)


cdef int read_remaining(Fields *f, const uint8_t *base, Py_ssize_t length) except -1:
    """Go on where a lazy reading stopped: managedFields, the larger half of a pod's metadata, come last."""
    cdef jb_walk w
    if f.next == 0:
        return 0
    if f.next > length:
        raise broken(f.next, "the buffer was changed")
    w.p = base + f.next
    w.end = base + length
    w.count = 1
    if read_members(f, base, &w, False) == NULL:
        raise broken(f.next)
    return 0


cdef Py_ssize_t read_object(
    Fields *f, const uint8_t *base, const uint8_t *p, const uint8_t *end, bint whole, bint lazy
) noexcept nogil:
    """p stands on the object's '{'. Returns the offset behind the object, or 0 when metadata was read and
    the rest not looked at; -1: no JSON, -2: an object without metadata, -3: metadata is no object."""
    cdef jb_walk w
    cdef jb_state s
    cdef const uint8_t *q
    cdef int more
    cdef bint found = False
    if jb_walk_start(&w, p, end) < 0:
        return -1
    while True:
        more = jb_walk_next(&w)
        if more < 0:
            return -1
        if more == 0:
            return w.p + 1 - base if found else -2
        if not found and jb_key_is(&w, b"metadata", 8):
            if w.val[0] != c'{':
                return -3
            q = read_metadata(f, base, w.val, end, lazy)
            if q == NULL:
                return -1
            if not whole:
                return 0
            # The rest is skipped as a container whose opener is behind us.
            s.depth = 1
            s.in_string = 0
            s.escaped = 0
            q = jb_skip(q, end, &s)
            return -1 if q == NULL else q - base
        if jb_walk_skip(&w) < 0:
            return -1


# Labels and owner references by their JSON. They seldom change, pods of one owner have the same ones, and reading them costs
# more than all else that is read of an object.
cdef dict known_labels = {}
cdef dict known_owners = {}
cdef enum:
    TEXTS_KEPT = 1024
    TEXT_LONGEST = 1024


@cython.final
@cython.freelist(64)
cdef class Meta:
    """Where one object's metadata stands in a buffer, which must not change while this is in use."""
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t end
    cdef Fields f
    cdef object buf
    cdef tuple _owners

    cdef int complete(self) except -1:
        cdef Py_buffer view
        if self.f.next:
            PyObject_GetBuffer(self.buf, &view, PyBUF_SIMPLE)
            try:
                read_remaining(&self.f, <const uint8_t *>view.buf, view.len if self.end < 0 else self.end)
            finally:
                PyBuffer_Release(&view)
        return 0

    cdef str text(self, const Span *s):
        cdef Py_buffer view
        if s.b == 0 and self.f.next:
            self.complete()
        if s.b == 0:
            return ""
        if PyBytes_CheckExact(self.buf):
            return text_of(<const uint8_t *>PyBytes_AS_STRING(self.buf), s[0])
        PyObject_GetBuffer(self.buf, &view, PyBUF_SIMPLE)
        try:
            if s.b > view.len:
                raise broken(s.a, "the buffer was changed")
            return text_of(<const uint8_t *>view.buf, s[0])
        finally:
            PyBuffer_Release(&view)

    cdef bytes raw(self, const Span *s):
        cdef Py_buffer view
        if s.b == 0 and self.f.next:
            self.complete()
        if s.b == 0:
            return b"null"
        PyObject_GetBuffer(self.buf, &view, PyBUF_SIMPLE)
        try:
            if s.b > view.len:
                raise broken(s.a, "the buffer was changed")
            return (<const uint8_t *>view.buf)[s.a:s.b]
        finally:
            PyBuffer_Release(&view)

    @property
    def name(self) -> str:
        return self.text(&self.f.name)

    @property
    def namespace(self) -> str:
        return self.text(&self.f.namespace)

    @property
    def uid(self) -> str:
        return self.text(&self.f.uid)

    @property
    def version(self) -> str:
        return self.text(&self.f.version)

    @property
    def deleting(self) -> bool:
        if not self.f.deleting:
            self.complete()
        return self.f.deleting

    @property
    def owners(self) -> tuple:
        if self._owners is None:
            self._owners = owners_of(self.raw(&self.f.owners))
        return self._owners

    def labels(self) -> dict:
        """The labels; members that are no strings are left out. Objects with the same share them: never change it."""
        cdef bytes raw = self.raw(&self.f.labels)
        cdef dict found = known_labels.get(raw)
        if found is None:
            found = string_map(raw)
            remember(known_labels, raw, found)
        return found

    def annotations(self) -> dict:
        """The annotations; members that are no strings are left out."""
        return string_map(self.raw(&self.f.annotations))

    def annotation(self, key: str):
        """One annotation's value, None when it is absent."""
        return string_map(self.raw(&self.f.annotations)).get(key)

    def __repr__(self) -> str:
        return f"<Meta {self.namespace}/{self.name} version={self.version!r} at {self.start}:{self.end}>"


cdef object decode(bytes raw):
    try:
        return json.loads(raw)
    except ValueError as error:
        raise SpliceError("not JSON") from error
    except RecursionError as error:
        raise SpliceError("JSON nested too deep") from error


cdef dict string_map(bytes raw):
    value = decode(raw)
    if type(value) is not dict:
        return {}
    return {k: v for k, v in value.items() if type(v) is str}


cdef str string_or_empty(dict d, str key):
    value = d.get(key)
    return value if type(value) is str else ""


cdef remember(dict known, bytes raw, object value):
    if len(known) >= TEXTS_KEPT:
        known.clear()
    if len(raw) <= TEXT_LONGEST:
        known[raw] = value


cdef tuple owners_of(bytes raw):
    if raw == b"null":   # the usual case costs no decoder
        return ()
    found = known_owners.get(raw)
    if found is not None:
        return <tuple>found
    value = decode(raw)
    owners = tuple([
        Owner(*[string_or_empty(o, k) for k in ("uid", "apiVersion", "kind", "name")])
        for o in value if type(o) is dict
    ]) if type(value) is list else ()
    remember(known_owners, raw, owners)
    return owners


cdef Meta make_meta(object buf, const uint8_t *base, Py_ssize_t start, Py_ssize_t length, bint whole):
    cdef Meta meta = Meta.__new__(Meta)
    cdef const uint8_t *p
    cdef Py_ssize_t end
    if start < 0 or start > length:
        raise SpliceError(f"start {start} is outside of {length} bytes")
    jb_prefetch(base + start, length - start)
    p = jb_space(base + start, base + length)
    end = read_object(&meta.f, base, p, base + length, whole, False)
    if end < 0:
        raise broken(start, {-1: "not JSON, or cut short", -2: "no metadata",
                             -3: "metadata is no object"}[end])
    meta.buf = buf
    meta.start = p - base
    meta.end = end if end else -1
    return meta


def scan(buf, Py_ssize_t start=0, bint whole=False):
    """Metadata of the object that starts at `start` (white space before it is skipped).

    Reads up to the end of `metadata`; with `whole` to the object's end too, so that `Meta.end` is set.
    SpliceError when the bytes are no JSON object, are cut short, or have no metadata.
    """
    cdef Py_buffer view
    if PyBytes_CheckExact(buf):
        return make_meta(buf, <const uint8_t *>PyBytes_AS_STRING(buf), start, PyBytes_GET_SIZE(buf), whole)
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        return make_meta(buf, <const uint8_t *>view.buf, start, view.len, whole)
    finally:
        PyBuffer_Release(&view)


cdef str event_type(const uint8_t *base, Span s):
    cdef Py_ssize_t n = s.b - s.a
    cdef const uint8_t *p = base + s.a
    if n == 7 and memcmp(p, b'"ADDED"', 7) == 0:
        return "ADDED"
    if n == 10 and memcmp(p, b'"MODIFIED"', 10) == 0:
        return "MODIFIED"
    if n == 9 and memcmp(p, b'"DELETED"', 9) == 0:
        return "DELETED"
    return text_of(base, s)


cdef Py_ssize_t end_in_frame(const uint8_t *base, Py_ssize_t length) noexcept nogil:
    """Offset behind the object when it is the frame's last member: the frame's own '}' taken off."""
    while length > 0 and base[length - 1] in b" \n\r\t":
        length -= 1
    if length < 2 or base[length - 1] != c'}':
        return -1
    length -= 1
    while length > 0 and base[length - 1] in b" \n\r\t":
        length -= 1
    return length if length > 0 and base[length - 1] == c'}' else -1


def scan_frame(bytes frame):
    """(type, Meta of the object) of one watch frame `{"type": …, "object": …}`, in either order.

    `Meta.end` is set. When `type` comes first (as Kubernetes writes it) the object is taken to reach to
    the frame's last brace and its rest is not read, nor what of metadata nobody asks for. An ERROR's
    object may lack metadata.
    """
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(frame)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(frame), end
    cdef jb_walk w
    cdef Span kind, where
    cdef Meta meta
    cdef int more = -1
    kind.b = where.b = 0
    jb_prefetch(base, length)
    if jb_walk_start(&w, jb_space(base, base + length), base + length) < 0:
        raise broken(0, "a watch frame is no JSON object")
    while True:
        more = jb_walk_next(&w)
        if more <= 0:
            break
        if jb_key_is(&w, b"object", 6):
            where.a = w.val - base
            if kind.b:
                end = end_in_frame(base, length)
                if end <= where.a or base[where.a] != c'{':
                    raise broken(where.a)
                where.b = end
                break
            if jb_walk_skip(&w) < 0:
                raise broken(where.a)
            where.b = w.p - base
        else:
            if jb_walk_skip(&w) < 0:
                raise broken(w.val - base)
            if jb_key_is(&w, b"type", 4):
                kind.a = w.val - base
                kind.b = w.p - base
        if kind.b and where.b:
            break
    if more < 0:
        raise broken(w.p - base)
    if not kind.b or not where.b or base[kind.a] != c'"' or base[where.a] != c'{':
        raise broken(0, "a watch frame needs a type and an object")
    text = event_type(base, kind)
    meta = Meta.__new__(Meta)
    end = read_object(&meta.f, base, base + where.a, base + where.b, False, True)
    if end == -2 and text == "ERROR":
        meta.f.open = 0
    elif end < 0:
        raise broken(where.a, "no metadata" if end == -2 else "not JSON, or cut short")
    meta.buf = frame
    meta.start = where.a
    meta.end = where.b
    return text, meta
