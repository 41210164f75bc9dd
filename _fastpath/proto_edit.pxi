"""The way out: one copy of the object with a few ranges replaced, and the lengths around them."""

cdef extern from "<string.h>" nogil:
    void *memmem(const void *haystack, size_t length, const void *needle, size_t needle_length)

cdef bytes UID_KEY = b'\\"uid\\":\\"'   # as the JSON of managedFields holds it, escaped inside a key: k:{\"uid\":\"…\"}
cdef dict note_records = {}   # cluster's name -> record of its annotation; emptied when there are too many


cdef inline Py_ssize_t put_varint(uint8_t *to, uint64_t value) noexcept nogil:
    cdef Py_ssize_t n = 0
    while value >= 0x80:
        to[n] = <uint8_t>(value | 0x80)
        value >>= 7
        n += 1
    to[n] = <uint8_t>value
    return n + 1


cdef bytes varint(uint64_t value):
    cdef uint8_t to[10]
    cdef Py_ssize_t n = put_varint(to, value)
    return (<const char *>to)[:n]


cdef bytes record(uint32_t number, bytes payload):
    """A length-delimited field."""
    return varint(number << 3 | LEN) + varint(len(payload)) + payload


cdef bytes map_entry(uint32_t number, bytes key, bytes value):
    return record(number, record(1, key) + record(2, value))


cdef bytes note_record(bytes cluster):
    found = note_records.get(cluster)
    if found is None:
        if len(note_records) >= 4096:
            note_records.clear()
        found = note_records[cluster] = map_entry(ANNOTATIONS, CLUSTER_KEY, cluster)
    return <bytes>found


cdef list records_of(bytes raw):
    """[number, wire, payload, record] of each field of a message, in order."""
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(raw)
    cdef const uint8_t *end = base + PyBytes_GET_SIZE(raw)
    cdef const uint8_t *p = base
    cdef Rec r
    cdef int more
    out = []
    while True:
        more = next_record(p, end, &r)
        if more < 0:
            raise broken(p - base)
        if more == 0:
            return out
        out.append([r.number, r.wire, (<const char *>r.val)[:r.end - r.val], (<const char *>r.start)[:r.end - r.start]])
        p = r.end


cdef bytes with_field(bytes raw, uint32_t number, bytes payload):
    """The message with another value of a length-delimited field that it has."""
    return b"".join([record(number, payload) if r[0] == number and r[1] == LEN else r[3] for r in records_of(raw)])


cdef str string_in(bytes raw, uint32_t number):
    """A string field's value, "" when absent."""
    found = b""
    for r in records_of(raw):
        if r[0] == number and r[1] == LEN:
            found = r[2]
    return decoded(found)


cdef str decoded(bytes raw):
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise SpliceError("a string is no UTF-8") from error


# In place.

cdef Span uid_in(const uint8_t *base, const uint8_t *p, const uint8_t *end) except *:
    """Where the uid of a reference stands; b == 0 when it has none."""
    cdef Span found
    cdef Rec r
    cdef int more
    found.a = found.b = 0
    while True:
        more = next_record(p, end, &r)
        if more < 0:
            raise broken(p - base)
        if more == 0:
            return found
        if r.number == REF_UID and r.wire == LEN:
            found.a = r.val - base
            found.b = r.end - base
        p = r.end


cdef bint edit_uid(Edits *e, Span uid, bytes new) noexcept:
    return PyBytes_GET_SIZE(new) == uid.b - uid.a and add_edit(
        e, uid.a, uid.b, <const uint8_t *>PyBytes_AS_STRING(new), PyBytes_GET_SIZE(new))


cdef bint edit_managed(Edits *e, const uint8_t *base, Span where, bytes old, bytes new):
    """Overwrite the uid in every key k:{"uid":"…"} of managedFields. False when there is no room."""
    cdef bytes pattern = UID_KEY + old + b'\\"'
    cdef const uint8_t *p = base + where.a
    cdef Rec r, entry, text
    while next_record(p, base + where.b, &r) == 1:
        p = r.end
        if r.number != MANAGED:
            continue
        while next_record(r.val, r.end, &entry) == 1:
            r.val = entry.end
            if entry.number != 7 or entry.wire != LEN:   # fieldsV1, whose only field is the text
                continue
            while next_record(entry.val, entry.end, &text) == 1:
                entry.val = text.end
                if text.number == 1 and text.wire == LEN and not edit_keys(e, base, text.val, text.end, pattern, new):
                    return False
    return True


cdef bint edit_keys(Edits *e, const uint8_t *base, const uint8_t *p, const uint8_t *end, bytes pattern, bytes new):
    cdef Span at
    while True:
        p = <const uint8_t *>memmem(p, end - p, PyBytes_AS_STRING(pattern), PyBytes_GET_SIZE(pattern))
        if p == NULL:
            return True
        at.a = p - base + PyBytes_GET_SIZE(UID_KEY)
        at.b = at.a + PyBytes_GET_SIZE(pattern) - PyBytes_GET_SIZE(UID_KEY) - 2
        if not edit_uid(e, at, new):
            return False
        p += PyBytes_GET_SIZE(pattern)


cdef bint edit_owners(Edits *e, const uint8_t *base, const Fields *f, owners, list alive) except -1:
    """Overwrite owners' uids in place. False when a reference is to go, a length changes, or there is no room."""
    cdef const uint8_t *p = base + f.owners.a
    cdef Rec r
    cdef Span uid
    cdef bytes new
    cdef list done = []
    while next_record(p, base + f.owners.b, &r) == 1:
        p = r.end
        if r.number != OWNERS or r.wire != LEN:
            continue
        uid = uid_in(base, r.val, r.end)
        if uid.b == 0:
            continue
        old = text_of(base, uid)
        other = owners.get(old, MISSING)
        if other is MISSING:
            continue
        if other is None:
            return False
        new = other.encode()
        alive.append(new)
        if not edit_uid(e, uid, new):
            return False
        if f.managed.b and old not in done:   # an owner that is named twice is once enough in managedFields
            done.append(old)
            if not edit_managed(e, base, f.managed, old.encode(), new):
                return False
    return True


cdef bint edit_metadata(Edits *e, const uint8_t *base, const Fields *f, bytes version_record, bytes note,
                        owners, list alive) except -1:
    """The usual changes, in place. False when metadata must be put together anew."""
    cdef Py_ssize_t at = f.version_tag if f.version.b else f.open
    if f.ours:
        return False
    add_edit(e, at, f.version.b if f.version.b else f.open,
             <const uint8_t *>PyBytes_AS_STRING(version_record), PyBytes_GET_SIZE(version_record))
    if note is not None:
        add_edit(e, f.cluster.a if f.cluster.b else f.note_at, f.cluster.b if f.cluster.b else f.note_at,
                 <const uint8_t *>PyBytes_AS_STRING(note), PyBytes_GET_SIZE(note))
    return not owners or f.owners.b == 0 or edit_owners(e, base, f, owners, alive)


# Put together anew.

cdef object references_in(bytes value):
    """The references that an annotation keeps as JSON text; None when it is no such text."""
    try:
        refs = json.loads(value)
    except ValueError:
        return None   # somebody else's text under our name: left where it is
    except RecursionError:
        return None
    return refs if type(refs) is list and all([type(r) is dict for r in refs]) else None


cdef str json_uid(dict ref):
    uid = ref.get("uid")
    return uid if type(uid) is str else ""


cdef bytes reference_bytes(dict ref):
    """An owner reference of JSON as the message."""
    out = b""
    for number, key in ((REF_KIND, "kind"), (REF_NAME, "name"), (REF_UID, "uid"), (REF_API_VERSION, "apiVersion")):
        value = ref.get(key)
        out += record(number, value.encode("utf-8", "replace") if type(value) is str else b"")
    for number, key in ((REF_CONTROLLER, "controller"), (REF_BLOCK, "blockOwnerDeletion")):
        if type(ref.get(key)) is bool:
            out += varint(number << 3) + varint(ref[key])
    return out


cdef dict reference_json(bytes raw):
    """An owner reference's message as JSON, in Kubernetes' order."""
    names = {REF_KIND: "kind", REF_NAME: "name", REF_UID: "uid", REF_API_VERSION: "apiVersion"}
    flags = {REF_CONTROLLER: "controller", REF_BLOCK: "blockOwnerDeletion"}
    found = {}
    for number, wire, payload, _ in records_of(raw):
        if wire == LEN and number in names:
            found[names[number]] = decoded(payload)
        elif wire == VARINT and number in flags:
            found[flags[number]] = payload != b"\0"
    return {key: found.get(key, "") for key in ("apiVersion", "kind", "name", "uid")} | {
        key: found[key] for key in flags.values() if key in found}


cdef bytes managed_record(bytes raw, dict replaced):
    """A ManagedFieldsEntry with the uids in keys of its fieldsV1 replaced."""
    out = b""
    for number, wire, payload, whole in records_of(raw):
        if number == 7 and wire == LEN:
            fields = b""
            for inner, kind, text, as_it_is in records_of(payload):
                if inner == 1 and kind == LEN:
                    for old, new in replaced.items():
                        text = text.replace(UID_KEY + old.encode() + b'\\"', UID_KEY + new.encode() + b'\\"')
                    fields += record(1, text)
                else:
                    fields += as_it_is
            out += record(7, fields)
        else:
            out += whole
    return record(MANAGED, out)


cdef tuple map_references(list refs, owners):
    """(kept, removed, replaced): references by what `owners` says of their uids."""
    kept, removed, replaced = [], [], {}
    for ref in refs:
        uid = string_in(ref, REF_UID)
        other = owners.get(uid, MISSING) if owners and uid else MISSING
        if other is MISSING:
            kept.append(ref)
        elif other is None:
            removed.append(ref)
        else:
            replaced[uid] = other
            kept.append(with_field(ref, REF_UID, other.encode()))
    return kept, removed, replaced


cdef bytes shown_metadata(bytes raw, bytes version_record, bytes note, owners):
    """ObjectMeta when references are removed or put in, or our annotations stand on the member's object."""
    refs, notes, rest = [], [], []
    hosts = None
    for number, wire, payload, whole in records_of(raw):
        if number == OWNERS and wire == LEN:
            refs.append(payload)
        elif number == ANNOTATIONS and wire == LEN:
            key = string_in(payload, 1).encode()
            if key == HOST_OWNERS_KEY:
                if hosts is not None:
                    raise SpliceError(f"annotation {HOST_OWNERS_ANNOTATION} is there twice")
                hosts = references_in(string_in(payload, 2).encode())
                if hosts is None:   # no references: somebody else's text
                    notes.append(whole)
                    hosts = False
            elif key != MEMBER_OWNERS_KEY and not (key == CLUSTER_KEY and note is not None):
                notes.append(whole)
        elif number != VERSION:
            rest.append([number, wire, payload, whole])
    kept, removed, replaced = map_references(refs, owners)
    if hosts:
        have = {string_in(ref, REF_UID) for ref in kept}
        kept += [reference_bytes(ref) for ref in hosts if json_uid(ref) not in have]
    if removed:
        text = json.dumps([reference_json(ref) for ref in removed], separators=(",", ":"), ensure_ascii=False)
        notes.append(map_entry(ANNOTATIONS, MEMBER_OWNERS_KEY, text.encode()))
    if note is not None:
        notes.append(note)
    out = [(VERSION, version_record)]
    out += [(ANNOTATIONS, one) for one in notes] + [(OWNERS, record(OWNERS, ref)) for ref in kept]
    for number, wire, payload, whole in rest:
        if number == MANAGED and wire == LEN and replaced:
            whole = managed_record(payload, replaced)
        out.append((number, whole))
    out.sort(key=first_of)
    return b"".join([one for _, one in out])


def first_of(pair):
    return pair[0]


cdef edit_references(Edits *e, const uint8_t *base, Py_ssize_t start, Py_ssize_t end, object_uids, references,
                     list alive):
    """Events: the uid of what they are about."""
    cdef const uint8_t *p = base + start
    cdef Rec r
    cdef Span uid
    cdef bytes new
    cdef int more
    while True:
        more = next_record(p, base + end, &r)
        if more < 0:
            raise broken(p - base)
        if more == 0:
            return
        p = r.end
        if r.wire != LEN or r.number not in references:
            continue
        uid = uid_in(base, r.val, r.end)
        other = object_uids.get(text_of(base, uid)) if uid.b else None
        if other is None:
            continue
        new = other.encode()
        alive.append(new)
        if not edit_uid(e, uid, new):
            new = record(r.number, with_field((<const char *>r.val)[:r.end - r.val], REF_UID, new))
            alive.append(new)
            if not add_edit(e, r.start - base, r.end - base, <const uint8_t *>PyBytes_AS_STRING(new), len(new)):
                raise broken(r.start - base, "too many changes")


cdef bytes splice_at(const uint8_t *base, Meta meta, bytes version, bytes cluster, owners, object_uids, references):
    cdef Edits e
    cdef Fields *f = &meta.f
    cdef uint8_t size[10]
    cdef list alive = []
    cdef bytes text, new, note = None
    if f.open == 0:
        raise SpliceError("no metadata")
    check_version(version)
    text = record(VERSION, version)
    if cluster is not None:
        note = note_record(cluster)
    e.count = 0
    e.growth = 0
    if not edit_metadata(&e, base, f, text, note, owners, alive):
        e.count = 0
        e.growth = 0
        new = shown_metadata((<const char *>base)[f.open:f.close], text, note, owners)
        alive.append(new)
        add_edit(&e, f.open, f.close, <const uint8_t *>PyBytes_AS_STRING(new), PyBytes_GET_SIZE(new))
    if not add_edit(&e, f.size_at, f.open, size, put_varint(size, f.close - f.open + e.growth)):
        raise broken(f.open, "too many changes")
    if object_uids and references:
        edit_references(&e, base, meta.start, meta.end, object_uids, references, alive)
    return apply_edits(base, meta.start, meta.end, &e)


def splice(bytes buf not None, Meta meta not None, bytes version not None, bytes cluster, owners=None,
           Py_ssize_t end=-1, object_uids=None, references=()) -> bytes:
    """The object's message as clients see it, without an envelope; arguments as of `_fastpath.splice.splice`.

    `references` are the numbers of the fields that are ObjectReferences to be mapped by `object_uids` (JSON finds
    them by name). `end` is not looked at: a message knows where it ends.
    """
    if meta.buf is not buf and meta.buf != buf:
        raise SpliceError("not the buffer it was found in")
    return splice_at(<const uint8_t *>PyBytes_AS_STRING(buf), meta, version, cluster, owners, object_uids, references)


cdef bytes put_field(bytes body, uint32_t number, bytes records):
    """The object's message with another value of one field of its metadata."""
    cdef Meta meta = make_meta(body, 0, len(body), False)
    out = [(r[0], r[3]) for r in records_of(body[meta.f.open:meta.f.close]) if r[0] != number]
    out.append((number, records))
    out.sort(key=first_of)
    return body[:meta.f.tag] + record(1, b"".join([one for _, one in out])) + body[meta.f.close:]


def put_labels(bytes body not None, labels) -> bytes:
    """The object's message with other labels."""
    return put_field(body, LABELS, strings_field(LABELS, labels))


def without_version(bytes body not None) -> bytes:
    """The object's message without metadata.resourceVersion."""
    return put_field(body, VERSION, b"")


# Envelopes.

def field(uint32_t number, bytes payload not None) -> bytes:
    """One length-delimited field."""
    return record(number, payload)


def field_head(uint32_t number, uint64_t size) -> bytes:
    """What stands before a payload of `size` bytes."""
    return varint(number << 3 | LEN) + varint(size)


def number_field(uint32_t number, uint64_t value) -> bytes:
    """One varint field."""
    return varint(number << 3) + varint(value)


def strings_field(uint32_t number, strings) -> bytes:
    """A map of strings, by key."""
    return b"".join([map_entry(number, k.encode(), strings[k].encode()) for k in sorted(strings)])


def envelope_head(bytes type_meta not None, uint64_t size) -> bytes:
    """What stands before a message of `size` bytes in an answer; `ENVELOPE_TAIL` stands behind it."""
    return MAGIC + record(1, type_meta) + varint(2 << 3 | LEN) + varint(size)


ENVELOPE_TAIL = b"\x1a\x00\x22\x00"   # contentEncoding and contentType: empty


def envelope(bytes type_meta not None, bytes body not None) -> bytes:
    """A message as an answer: magic and runtime.Unknown; `type_meta` is the TypeMeta's message."""
    return envelope_head(type_meta, len(body)) + body + ENVELOPE_TAIL


def event(bytes type_ not None, bytes type_meta not None, bytes body not None) -> bytes:
    """A watch's frame: its length (four bytes, big-endian), and a metav1.WatchEvent around the object."""
    cdef Py_ssize_t k = PyBytes_GET_SIZE(type_), t = PyBytes_GET_SIZE(type_meta), size = PyBytes_GET_SIZE(body)
    cdef uint64_t unknown, raw, whole
    cdef uint8_t *p
    cdef bytes out
    cdef uint8_t a[10]
    cdef uint8_t b[10]
    cdef uint8_t c[10]
    cdef uint8_t d[10]
    cdef Py_ssize_t na = put_varint(a, t), nb = put_varint(b, size), nc, nd
    if k > 64:
        raise ValueError("no event type is that long")
    unknown = 4 + 1 + na + t + 1 + nb + size + 4
    nc = put_varint(c, unknown)
    raw = 1 + nc + unknown
    nd = put_varint(d, raw)
    whole = 2 + k + 1 + nd + raw
    if whole >> 32:
        raise ValueError("a frame of more than 4 GiB")
    out = PyBytes_FromStringAndSize(NULL, 4 + whole)
    p = <uint8_t *>PyBytes_AS_STRING(out)
    p[0], p[1], p[2], p[3] = whole >> 24 & 255, whole >> 16 & 255, whole >> 8 & 255, whole & 255
    p[4], p[5] = 0x0A, <uint8_t>k
    p += 6
    memcpy(p, PyBytes_AS_STRING(type_), k)
    p += k
    p = put_head(p, 0x12, d, nd)
    p = put_head(p, 0x0A, c, nc)
    memcpy(p, b"k8s\0", 4)
    p = put_head(p + 4, 0x0A, a, na)
    memcpy(p, PyBytes_AS_STRING(type_meta), t)
    p = put_head(p + t, 0x12, b, nb)
    memcpy(p, PyBytes_AS_STRING(body), size)
    memcpy(p + size, b"\x1a\x00\x22\x00", 4)
    return out


cdef inline uint8_t *put_head(uint8_t *p, uint8_t tag, const uint8_t *size, Py_ssize_t n) noexcept nogil:
    p[0] = tag
    memcpy(p + 1, size, n)
    return p + 1 + n
