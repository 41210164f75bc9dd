"""Metadata taken apart into raw members and put together again: what edits in place cannot do, and the
way in (`unsplice`). Values stay the bytes they were; only owner references and our annotations change."""

cdef extern from "<string.h>" nogil:
    void *memmem(const void *haystack, size_t length, const void *needle, size_t needle_length)

cdef bytes UID_KEY = b'\\"uid\\":\\"'   # as managedFields hold it, escaped inside a key: k:{\"uid\":\"…\"}


cdef list members_of(const uint8_t *base, Py_ssize_t a, Py_ssize_t length):
    """[name, raw key, raw value] of each member of the object at `a`, in order."""
    cdef jb_walk w
    cdef int more
    out = []
    if jb_walk_start(&w, base + a, base + length) < 0:
        raise broken(a)
    while True:
        more = jb_walk_next(&w)
        if more == 0:
            return out
        if more < 0 or jb_walk_skip(&w) < 0:
            raise broken(w.p - base)
        key = (<const char *>w.raw)[:jb_value_end(w.raw, w.end) - w.raw]
        name = w.key[:w.key_len] if w.key_len >= 0 else key
        out.append([name, key, (<const char *>w.val)[:w.p - w.val]])


cdef list members(bytes raw):
    return members_of(<const uint8_t *>PyBytes_AS_STRING(raw), 0, PyBytes_GET_SIZE(raw))


cdef list elements(bytes raw):
    """The raw elements of an array; [] for null."""
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(raw)
    cdef const uint8_t *end = base + PyBytes_GET_SIZE(raw)
    cdef const uint8_t *p = base
    cdef const uint8_t *q
    cdef int count = 0, more
    out = []
    if raw == b"null":
        return out
    if p >= end or p[0] != c'[':
        raise broken(0, "not an array")
    p += 1
    while True:
        more = jb_next_element(&p, end, &count)
        if more == 0:
            return out
        q = jb_value_end(p, end) if more > 0 else NULL
        if q == NULL:
            raise broken(p - base)
        out.append((<const char *>p)[:q - p])
        p = q


cdef bytes join_object(list items):
    return b"{" + b",".join([key + b":" + value for _, key, value in items]) + b"}"


cdef bytes quoted(str text):
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")


cdef bytes quoted_version(bytes version):
    return b'"' + version + b'"'


cdef object find(list items, bytes name):
    for item in items:
        if item[0] == name:
            return item
    return None


cdef object reference_uid(bytes ref):
    """uid of a raw owner reference; None when it has none."""
    if not ref.startswith(b"{"):
        return None
    item = find(members(ref), b"uid")
    if item is None:
        return None
    value = decode(item[2])
    return value if type(value) is str else None


cdef bytes with_uid(bytes ref, str uid):
    items = members(ref)
    find(items, b"uid")[2] = quoted(uid)
    return join_object(items)


cdef object references_in(items, bytes name):
    """The references that an annotation keeps as JSON text; None when it is absent or no such text."""
    item = find(items, name)
    if item is None:
        return None
    try:
        text = decode(item[2])
        if type(text) is not str:
            return None
        raw = text.strip().encode("utf-8", "surrogatepass")
        refs = elements(raw) if raw.startswith(b"[") else None
        if refs is None or type(decode(raw)) is not list:
            return None
        return refs if all([type(decode(r)) is dict for r in refs]) else None
    except SpliceError:
        return None   # somebody else's text under our name: left where it is


cdef inline bint in_key(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Is the string that goes on at p a key? A colon stands behind it then. (A manager may have any name.)"""
    while p < end:
        if p[0] == c'\\':
            p += 2
        elif p[0] == c'"':
            p += 1
            while p < end and (p[0] == c' ' or p[0] == c'\n' or p[0] == c'\t' or p[0] == c'\r'):
                p += 1
            return p < end and p[0] == c':'
        else:
            p += 1
    return False


cdef bytes managed_uids(bytes raw, dict replaced):
    """managedFields with the uids in keys `k:{"uid":"…"}` replaced."""
    cdef const uint8_t *base
    cdef Py_ssize_t n
    for old, new in replaced.items():
        first, *rest = raw.split(UID_KEY + old.encode() + b'\\"')
        base = <const uint8_t *>PyBytes_AS_STRING(raw)
        n = len(first)
        out = [first]
        for piece in rest:
            n += len(UID_KEY) + len(old.encode()) + 2
            uid = new if in_key(base + n, base + PyBytes_GET_SIZE(raw)) else old
            out.append(UID_KEY + uid.encode() + b'\\"' + piece)
            n += len(piece)
        raw = b"".join(out)
    return raw


cdef tuple map_references(list refs, owners):
    """(kept, removed, replaced): references by what `owners` says of their uids."""
    kept, removed, replaced = [], [], {}
    for ref in refs:
        uid = reference_uid(ref)
        other = owners.get(uid, MISSING) if owners and uid is not None else MISSING
        if other is MISSING:
            kept.append(ref)
        elif other is None:
            removed.append(ref)
        else:
            replaced[uid] = other
            kept.append(with_uid(ref, other))
    return kept, removed, replaced


cdef list merged(list refs, list more):
    """refs, then those of `more` whose uid is not there yet."""
    have = {reference_uid(r) for r in refs}
    return refs + [r for r in more if reference_uid(r) not in have]


cdef str unicode_of(bytes raw):
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise SpliceError("a reference is no UTF-8") from error


cdef list put(list items, bytes name, object value, bint drop):
    """Set (or with drop remove) a member; a repeated one is removed, a new one comes first."""
    out, done = [], drop
    for item in items:
        if item[0] != name:
            out.append(item)
        elif not done:
            out.append([name, item[1], value])
            done = True
    if not done:
        out.insert(0, [name, b'"' + name + b'"', value])
    return out


cdef list object_members(items, bytes name):
    item = find(items, name)
    return members(item[2]) if item is not None and item[2].startswith(b"{") else []


cdef bytes shown_metadata(bytes raw, bytes version, bytes cluster_value, owners):
    """The way out when references are removed or our annotations stand on the member's object."""
    items = members(raw)
    notes = object_members(items, b"annotations")
    had_notes = len(notes) > 0
    item = find(items, b"ownerReferences")
    kept, removed, replaced = map_references(elements(item[2]) if item else [], owners)
    hosts = references_in(notes, HOST_OWNERS_KEY[1:-1])
    if hosts is not None:
        kept = merged(kept, hosts)
        notes = put(notes, HOST_OWNERS_KEY[1:-1], None, True)
    notes = put(notes, MEMBER_OWNERS_KEY[1:-1], None, True)
    if removed:
        text = quoted(unicode_of(b"[" + b",".join(removed) + b"]"))
        notes = put(notes, MEMBER_OWNERS_KEY[1:-1], text, False)
    if cluster_value is not None:
        notes = put(notes, CLUSTER_KEY[1:-1], cluster_value, False)
    item = find(items, b"managedFields")
    if item is not None and replaced:
        item[2] = managed_uids(item[2], replaced)
    if kept or removed:
        items = put(items, b"ownerReferences", b"[" + b",".join(kept) + b"]", not kept)
    if notes or had_notes:
        items = put(items, b"annotations", join_object(notes), not notes)
    return join_object(put(items, b"resourceVersion", quoted_version(version), False))


cdef refuse_repeats(list items, tuple names):
    for name in names:
        if sum([item[0] == name for item in items]) > 1:
            raise SpliceError(f"duplicate field {name.decode()!r}")


cdef bytes stored_metadata(bytes raw, version, owners):
    """The way in: what `shown_metadata` did, undone."""
    items = members(raw)
    # A server would take the last of a repeated field; ours would have looked at the first.
    refuse_repeats(items, (b"resourceVersion", b"annotations", b"ownerReferences", b"managedFields"))
    notes = object_members(items, b"annotations")
    refuse_repeats(notes, (CLUSTER_KEY[1:-1], MEMBER_OWNERS_KEY[1:-1], HOST_OWNERS_KEY[1:-1]))
    had = len(notes)
    restored = references_in(notes, MEMBER_OWNERS_KEY[1:-1])
    notes = put(notes, CLUSTER_KEY[1:-1], None, True)
    notes = put(notes, MEMBER_OWNERS_KEY[1:-1], None, True)
    item = find(items, b"ownerReferences")
    listed = item is not None and item[2].startswith(b"[")
    kept, moved, replaced = map_references(elements(item[2]) if listed else [], owners)
    if restored:
        kept = merged(kept, restored)
    if moved:
        text = quoted(unicode_of(b"[" + b",".join(moved) + b"]"))
        notes = put(notes, HOST_OWNERS_KEY[1:-1], text, False)
    if kept or moved:
        items = put(items, b"ownerReferences", b"[" + b",".join(kept) + b"]", not kept)
    if had != len(notes) or moved:
        items = put(items, b"annotations", join_object(notes), not notes)
    for item in items:
        if item[0] == b"managedFields" and replaced:
            item[2] = managed_uids(item[2], replaced)
        elif item[0] == b"$setElementOrder/ownerReferences" and item[2].startswith(b"["):
            item[2] = b"[" + b",".join(map_references(elements(item[2]), owners)[0]) + b"]"
    if version is None:
        items = put(items, b"resourceVersion", None, True)
    else:
        items = put(items, b"resourceVersion", quoted_version(version), False)
    return join_object(items)


cdef list put_object_uids(list items, object_uids):
    for item in items:
        if item[0] in (b"involvedObject", b"regarding", b"related") and item[2].startswith(b"{"):
            other = object_uids.get(reference_uid(item[2]))
            if other is not None:
                item[2] = with_uid(item[2], other)
    return items


def unsplice(bytes buf, version, owners=None, object_uids=None) -> bytes:
    """A body as a client wrote it -> the body for the member.

    The annotation `reclock.dev/cluster` goes, the references kept in `reclock.dev/member-owners` return to
    ownerReferences, uids are overwritten by `owners` (a uid mapped to None: that reference moves to the
    annotation `reclock.dev/host-owners`) and by `object_uids` (events), and metadata.resourceVersion
    becomes `version`, or with None is removed. A body without metadata is returned as it is, but for uids.
    Works on whole objects and on merge, strategic and apply patches; SpliceError for anything else than a
    JSON object, and for repeated fields among those that are changed. Costs a walk of the whole body.
    """
    cdef Py_ssize_t start
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(buf)
    cdef const uint8_t *end = base + PyBytes_GET_SIZE(buf)
    cdef const uint8_t *p = jb_space(base, end)
    cdef const uint8_t *q
    start = p - base
    q = jb_value_end(p, end)
    if q == NULL or p[0] != c'{' or jb_space(q, end) != end:
        raise broken(start, "not one JSON object")
    if version is not None:
        check_version(version)
    items = members_of(base, start, end - base)
    refuse_repeats(items, (b"metadata",))
    if object_uids:
        items = put_object_uids(items, object_uids)
    item = find(items, b"metadata")
    if item is not None and item[2].startswith(b"{"):
        item[2] = stored_metadata(item[2], version, owners)
    elif version is not None:
        raise SpliceError("no metadata")
    return join_object(items)
