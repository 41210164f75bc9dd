"""The wire format, and finding an object's metadata in it."""

cdef enum:
    VARINT = 0
    FIXED64 = 1
    LEN = 2
    FIXED32 = 5

cdef enum:
    # Of meta/v1 ObjectMeta.
    NAME = 1
    NAMESPACE = 3
    UID = 5
    VERSION = 6
    DELETION = 9
    LABELS = 11
    ANNOTATIONS = 12
    OWNERS = 13
    MANAGED = 17

cdef enum:
    # Of OwnerReference and ObjectReference: uid has one number in both.
    REF_KIND = 1
    REF_NAME = 3
    REF_UID = 4
    REF_API_VERSION = 5
    REF_CONTROLLER = 6
    REF_BLOCK = 7


cdef struct Span:
    # Half-open range in the buffer; b == 0 means absent (a tag stands before every value).
    Py_ssize_t a
    Py_ssize_t b


cdef struct Rec:
    uint32_t number
    uint32_t wire
    uint64_t num           # of a varint
    const uint8_t *start   # its tag
    const uint8_t *val     # of LEN: the payload
    const uint8_t *end     # behind it


cdef inline int read_varint(const uint8_t **p, const uint8_t *end, uint64_t *out) noexcept nogil:
    """1, 0 when more bytes are needed, -1 when it is none."""
    cdef uint64_t value = 0
    cdef uint32_t shift = 0
    cdef const uint8_t *q = p[0]
    while q < end:
        value |= <uint64_t>(q[0] & 0x7F) << shift
        if q[0] < 0x80:
            p[0] = q + 1
            out[0] = value
            return 1
        q += 1
        shift += 7
        if shift > 63:
            return -1
    return 0


cdef inline int read_head(const uint8_t *p, const uint8_t *end, Rec *r) noexcept nogil:
    """Tag and size of the record at p; its `end` may lie behind the buffer. 1, 0 when cut, -1 when it is none."""
    cdef uint64_t n
    cdef int got
    r.start = p
    got = read_varint(&p, end, &n)
    if got <= 0:
        return got
    if n >> 3 == 0 or n >> 32:
        return -1
    r.number = <uint32_t>(n >> 3)
    r.wire = <uint32_t>(n & 7)
    r.num = 0
    if r.wire == VARINT:
        r.val = p
        got = read_varint(&p, end, &r.num)
        r.end = p
        return got
    if r.wire == LEN:
        got = read_varint(&p, end, &n)
        if got <= 0:
            return got
        if n >> 31:   # longer than any message can be
            return -1
    elif r.wire == FIXED64:
        n = 8
    elif r.wire == FIXED32:
        n = 4
    else:
        return -1
    r.val = p
    r.end = p + <Py_ssize_t>n
    return 1


cdef inline int next_record(const uint8_t *p, const uint8_t *end, Rec *r) noexcept nogil:
    """The whole record at p: 1, 0 at the end, -1 when it is none or cut short."""
    if p == end:
        return 0
    return 1 if read_head(p, end, r) == 1 and r.end <= end else -1


cdef struct Fields:
    Py_ssize_t tag         # metadata's tag in the object
    Py_ssize_t size_at     # its length prefix
    Py_ssize_t open        # its first byte
    Py_ssize_t close       # behind its last
    Py_ssize_t note_at     # where an annotation may be put
    Span name
    Span namespace
    Span uid
    Span version           # the value; the record's tag is version_tag
    Py_ssize_t version_tag
    Span cluster           # the annotation's whole record
    Span owners            # from the first reference's tag to behind the last's
    Span managed           # likewise
    bint deleting
    bint ours              # one of the owners' annotations is there


cdef enum:
    # Why an object is none: what its readers say.
    NO_PROTOBUF = -1
    NO_METADATA = -2
    AMBIGUOUS = -3


cdef int key_of(const uint8_t *p, const uint8_t *end, Rec *key) noexcept nogil:
    """The key of a map's entry: 1, 0 when it has none, NO_PROTOBUF. It may stand behind the value, and be there twice:
    then the last one counts, as for every reader of protobuf."""
    cdef Rec r
    cdef int more, found = 0
    while True:
        more = next_record(p, end, &r)
        if more <= 0:
            return found if more == 0 else NO_PROTOBUF
        if r.number == 1:
            if r.wire != LEN:
                return NO_PROTOBUF
            key[0] = r
            found = 1
        p = r.end


cdef inline bint is_text(const Rec *r, const char *name, Py_ssize_t n) noexcept nogil:
    return r.end - r.val == n and memcmp(r.val, name, n) == 0


cdef int keep_note(Fields *f, const uint8_t *base, const Rec *r) noexcept nogil:
    cdef Rec key
    cdef int found = key_of(r.val, r.end, &key)
    if found <= 0:
        return found
    if is_text(&key, b"reclock.dev/cluster", 19):
        f.cluster.a = r.start - base
        f.cluster.b = r.end - base
    elif is_text(&key, b"reclock.dev/host-owners", 23) or is_text(&key, b"reclock.dev/member-owners", 25):
        f.ours = True
    return 0


cdef inline void widen(Span *s, const uint8_t *base, const Rec *r) noexcept nogil:
    if s.b == 0:
        s.a = r.start - base
    s.b = r.end - base


cdef int read_metadata(Fields *f, const uint8_t *base, const Rec *metadata) noexcept nogil:
    """0, or why it is no ObjectMeta."""
    cdef const uint8_t *p = metadata.val
    cdef const uint8_t *end = metadata.end
    cdef Rec r
    cdef Span *s
    cdef int more
    f.tag = metadata.start - base
    f.size_at = metadata.start + 1 - base   # field 1: a tag of one byte
    f.open = p - base
    f.close = end - base
    while True:
        more = next_record(p, end, &r)
        if more <= 0:
            break
        p = r.end
        if r.wire != LEN and r.number in (NAME, NAMESPACE, UID, VERSION, DELETION, LABELS, ANNOTATIONS, OWNERS, MANAGED):
            return NO_PROTOBUF   # readers refuse it, and what we put in would stand beside it
        if f.note_at == 0 and r.number >= ANNOTATIONS:
            f.note_at = r.start - base
        if r.wire != LEN:
            continue
        s = NULL
        if r.number == ANNOTATIONS:
            if keep_note(f, base, &r) < 0:
                return NO_PROTOBUF
        elif r.number == MANAGED:
            widen(&f.managed, base, &r)
        elif r.number == OWNERS:
            widen(&f.owners, base, &r)
        elif r.number == NAME:
            s = &f.name
        elif r.number == NAMESPACE:
            s = &f.namespace
        elif r.number == UID:
            s = &f.uid
        elif r.number == DELETION:
            f.deleting = True
        elif r.number == VERSION:
            if f.version.b:
                return AMBIGUOUS
            f.version_tag = r.start - base
            s = &f.version
        if s != NULL:
            s.a = r.val - base
            s.b = r.end - base
    if f.note_at == 0:
        f.note_at = f.close
    return more


cdef int read_object(Fields *f, const uint8_t *base, const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Fills `f` for the object that lies from p to end; 0, or why it is none.

    Metadata in two records is valid protobuf (readers merge them), and nobody writes it: it is refused, for one of them
    would keep what the other must not show. A tag that takes more bytes than it needs likewise.
    """
    cdef Rec r
    cdef int more, found = NO_METADATA
    while True:
        more = next_record(p, end, &r)
        if more <= 0:
            return found if more == 0 else NO_PROTOBUF
        if r.number == 1:
            if found == 0:
                return AMBIGUOUS
            if r.wire != LEN or r.val - r.start > 10:
                return NO_METADATA
            if r.start[0] != 0x0A:
                return AMBIGUOUS
            found = read_metadata(f, base, &r)
            if found < 0:
                return found
        p = r.end


cdef str why(int found):
    if found == NO_METADATA:
        return "no metadata"
    return "it can be read in two ways" if found == AMBIGUOUS else "not protobuf, or cut short"


cdef str text_of(const uint8_t *base, Span s):
    if s.b == 0:
        return ""
    try:
        return PyUnicode_DecodeUTF8(<const char *>base + s.a, s.b - s.a, NULL)
    except UnicodeDecodeError as error:
        raise broken(s.a, "a string is no UTF-8") from error


cdef str text(const uint8_t *p, const uint8_t *end):
    cdef Span s
    s.a = 0
    s.b = end - p
    return text_of(p, s)


cdef tuple entry_of(const uint8_t *p, const uint8_t *end):
    """(key, value) of an entry of a map of strings."""
    cdef Rec r
    cdef int more
    key = value = ""
    while True:
        more = next_record(p, end, &r)
        if more < 0:
            raise broken(0, "a map's entry is broken")
        if more == 0:
            return key, value
        if r.wire == LEN and r.number == 1:
            key = text(r.val, r.end)
        elif r.wire == LEN and r.number == 2:
            value = text(r.val, r.end)
        p = r.end


cdef object owner_of(const uint8_t *p, const uint8_t *end):
    cdef Rec r
    cdef int more
    uid = api_version = kind = name = ""
    while True:
        more = next_record(p, end, &r)
        if more < 0:
            raise broken(0, "an owner's reference is broken")
        if more == 0:
            return Owner(uid, api_version, kind, name)
        if r.wire == LEN:
            if r.number == REF_UID:
                uid = text(r.val, r.end)
            elif r.number == REF_API_VERSION:
                api_version = text(r.val, r.end)
            elif r.number == REF_KIND:
                kind = text(r.val, r.end)
            elif r.number == REF_NAME:
                name = text(r.val, r.end)
        p = r.end


@cython.final
@cython.freelist(64)
cdef class Meta:
    """Where one object's metadata stands in a buffer; texts are made when asked for, "" when absent."""
    cdef readonly Py_ssize_t start   # the object's message
    cdef readonly Py_ssize_t end
    cdef Fields f
    cdef bytes buf
    cdef tuple _owners

    @property
    def name(self) -> str:
        return text_of(<const uint8_t *>PyBytes_AS_STRING(self.buf), self.f.name)

    @property
    def namespace(self) -> str:
        return text_of(<const uint8_t *>PyBytes_AS_STRING(self.buf), self.f.namespace)

    @property
    def uid(self) -> str:
        return text_of(<const uint8_t *>PyBytes_AS_STRING(self.buf), self.f.uid)

    @property
    def version(self) -> str:
        return text_of(<const uint8_t *>PyBytes_AS_STRING(self.buf), self.f.version)

    @property
    def deleting(self) -> bool:
        return self.f.deleting

    @property
    def owners(self) -> tuple:
        cdef const uint8_t *base
        cdef const uint8_t *p
        cdef Rec r
        if self.f.owners.b == 0:
            return ()
        if self._owners is None:
            base = <const uint8_t *>PyBytes_AS_STRING(self.buf)
            p = base + self.f.owners.a
            found = []
            while next_record(p, base + self.f.owners.b, &r) == 1:
                if r.number == OWNERS and r.wire == LEN:
                    found.append(owner_of(r.val, r.end))
                p = r.end
            self._owners = tuple(found)
        return self._owners

    cdef dict strings(self, uint32_t number):
        cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(self.buf)
        cdef const uint8_t *p = base + self.f.open
        cdef Rec r
        found = {}
        while next_record(p, base + self.f.close, &r) == 1:
            if r.number == number and r.wire == LEN:
                key, value = entry_of(r.val, r.end)
                found[key] = value
            p = r.end
        return found

    def labels(self) -> dict:
        return self.strings(LABELS)

    def annotations(self) -> dict:
        return self.strings(ANNOTATIONS)

    def annotation(self, key: str):
        """One annotation's value, None when it is absent."""
        return self.strings(ANNOTATIONS).get(key)

    def __repr__(self) -> str:
        return f"<Meta {self.namespace}/{self.name} version={self.version!r} at {self.start}:{self.end}>"


cdef Meta make_meta(bytes buf, Py_ssize_t start, Py_ssize_t end, bint bare):
    cdef Meta meta = Meta.__new__(Meta)
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(buf)
    cdef int found
    if start < 0 or start > end or end > PyBytes_GET_SIZE(buf):
        raise SpliceError(f"{start}:{end} is outside of {PyBytes_GET_SIZE(buf)} bytes")
    found = read_object(&meta.f, base, base + start, base + end)
    if found < 0 and not bare:
        raise broken(start, why(found))
    if found < 0:
        memset(&meta.f, 0, sizeof(Fields))
    meta.buf = buf
    meta.start = start
    meta.end = end
    return meta


def scan(bytes buf not None, Py_ssize_t start=0, bint whole=False):
    """Metadata of the object's message that lies from `start` to the buffer's end; SpliceError when it is none."""
    return make_meta(buf, start, PyBytes_GET_SIZE(buf), False)


cdef tuple unwrapped(bytes buf, Py_ssize_t start, Py_ssize_t end):
    """(apiVersion, kind, start and end of the message) of a runtime.Unknown behind its magic."""
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(buf)
    cdef const uint8_t *stop = base + end
    cdef const uint8_t *p
    cdef Rec r
    cdef int more
    cdef Span raw
    cdef bint typed = False
    raw.a = raw.b = 0
    if end - start < 4 or memcmp(base + start, b"k8s\0", 4) != 0:
        raise broken(start, "it does not begin as Kubernetes' protobuf does")
    p = base + start + 4
    api_version = kind = ""
    while True:
        more = next_record(p, stop, &r)
        if more < 0:
            raise broken(p - base)
        if more == 0:
            break
        if r.wire == LEN and r.number == 1:
            if typed:
                raise broken(start, why(AMBIGUOUS))
            typed = True
            api_version, kind = entry_of(r.val, r.end)   # TypeMeta: two strings, as an entry of a map
        elif r.wire == LEN and r.number == 2:
            raw.a = r.val - base
            raw.b = r.end - base
        elif r.wire == LEN and r.number == 3 and r.end != r.val:
            raise broken(start, "its content is encoded")
        p = r.end
    if raw.b == 0:
        raise broken(start, "an envelope without an object")
    return api_version, kind, raw.a, raw.b


def unwrap(bytes buf not None) -> tuple:
    """(apiVersion, kind, start, end of the message) of an answer: magic and runtime.Unknown."""
    return unwrapped(buf, 0, PyBytes_GET_SIZE(buf))


def scan_answer(bytes buf not None):
    """Metadata of the object in an answer (magic and runtime.Unknown); SpliceError when it is none."""
    _, _, start, end = unwrapped(buf, 0, PyBytes_GET_SIZE(buf))
    return make_meta(buf, start, end, False)


def scan_frame(bytes frame not None):
    """(type, Meta of the object) of one watch frame, a metav1.WatchEvent, without its length.

    An ERROR's Meta spans the whole envelope, magic and all, and names nothing.
    """
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(frame)
    cdef const uint8_t *end = base + PyBytes_GET_SIZE(frame)
    cdef const uint8_t *p = base
    cdef Span kind, where
    cdef Rec r, inner
    cdef int more
    kind.b = where.b = 0
    while True:
        more = next_record(p, end, &r)
        if more < 0:
            raise broken(p - base)
        if more == 0:
            break
        p = r.end
        if r.wire != LEN:
            continue
        if r.number == 1:
            kind.a = r.val - base
            kind.b = r.end - base
        elif r.number == 2 and next_record(r.val, r.end, &inner) == 1 and inner.number == 1 and inner.wire == LEN:
            if inner.end != r.end:
                raise broken(inner.end - base, why(AMBIGUOUS))
            where.a = inner.val - base
            where.b = inner.end - base
    if kind.b == 0 or where.b == 0:
        raise broken(0, "a watch frame needs a type and an object")
    type_ = event_type(base, kind)
    if type_ == "ERROR":
        return type_, make_meta(frame, where.a, where.b, True)
    _, _, start, stop = unwrapped(frame, where.a, where.b)
    return type_, make_meta(frame, start, stop, False)


cdef str event_type(const uint8_t *base, Span s):
    cdef Py_ssize_t n = s.b - s.a
    cdef const uint8_t *p = base + s.a
    if n == 5 and memcmp(p, b"ADDED", 5) == 0:
        return "ADDED"
    if n == 8 and memcmp(p, b"MODIFIED", 8) == 0:
        return "MODIFIED"
    if n == 7 and memcmp(p, b"DELETED", 7) == 0:
        return "DELETED"
    return text_of(base, s)
