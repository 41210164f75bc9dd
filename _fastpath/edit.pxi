"""The way out: one copy of the object with a few ranges replaced."""

cdef struct Notes:
    Py_ssize_t first    # first key of the annotations, == close when there is none
    Py_ssize_t close
    Span cluster
    bint ours           # one of the owners' annotations is there


# Cluster's name -> b'"reclock.dev/cluster":"name",'. Fleets are small; emptied when it is not.
cdef dict cluster_texts = {}


cdef bytes cluster_text(bytes cluster):
    text = cluster_texts.get(cluster)
    if text is None:
        if len(cluster_texts) >= 4096:
            cluster_texts.clear()
        text = cluster_texts[cluster] = CLUSTER_KEY + b":" + quoted(cluster.decode()) + b","
    return <bytes>text


cdef int read_notes(Notes *notes, const uint8_t *base, Span where) noexcept nogil:
    cdef jb_walk w
    cdef int more
    notes.first = notes.cluster.a = notes.cluster.b = 0
    notes.ours = False
    if jb_walk_start(&w, base + where.a, base + where.b) < 0:
        return -1
    while True:
        more = jb_walk_next(&w)
        if more < 0:
            return -1
        if notes.first == 0:
            notes.first = (w.raw if more else w.p) - base
        if more == 0:
            notes.close = w.p - base
            return 0
        if jb_walk_skip(&w) < 0:
            return -1
        if w.key_len < 19 or memcmp(w.key, b"reclock.dev/", 12) != 0:
            continue
        if jb_key_is(&w, b"reclock.dev/cluster", 19):
            set_once(&notes.cluster, base, w.val, w.p)
        elif jb_key_is(&w, b"reclock.dev/host-owners", 23) or jb_key_is(&w, b"reclock.dev/member-owners", 25):
            notes.ours = True


cdef bint edit_uid(Edits *e, const uint8_t *base, Span uid, other, list alive):
    cdef bytes new = quoted(other)
    alive.append(new)
    return add_edit(e, uid.a, uid.b, <const uint8_t *>PyBytes_AS_STRING(new), PyBytes_GET_SIZE(new))


cdef bint edit_managed(Edits *e, const uint8_t *base, Span where, bytes old, bytes new):
    """Overwrite the uid in every key k:{"uid":"…"} of managedFields. False when there is no room."""
    cdef bytes pattern = UID_KEY + old + b'\\"'
    cdef const uint8_t *p = base + where.a
    cdef Py_ssize_t at
    while True:
        p = <const uint8_t *>memmem(p, base + where.b - p, PyBytes_AS_STRING(pattern), PyBytes_GET_SIZE(pattern))
        if p == NULL:
            return True
        at = p - base + PyBytes_GET_SIZE(UID_KEY)
        p += PyBytes_GET_SIZE(pattern)
        if in_key(p, base + where.b) and not add_edit(e, at, at + PyBytes_GET_SIZE(old), <const uint8_t *>PyBytes_AS_STRING(new),
                        PyBytes_GET_SIZE(new)):
            return False


cdef Span uid_in(const uint8_t *base, const uint8_t *p, const uint8_t *end) except *:
    """Where the uid of the object at p stands; b == 0 when it has none or is no object."""
    cdef jb_walk w
    cdef Span found
    cdef int more
    found.a = found.b = 0
    if jb_walk_start(&w, p, end) < 0:
        return found
    while True:
        more = jb_walk_next(&w)
        if more == 0:
            return found
        if more < 0 or jb_walk_skip(&w) < 0:
            raise broken(w.p - base)
        if jb_key_is(&w, b"uid", 3) and w.val[0] == c'"':
            found.a = w.val - base
            found.b = w.p - base
            return found


cdef bint edit_owners(Edits *e, const uint8_t *base, const Fields *f, owners, list alive):
    """Overwrite owners' uids in place. False when a reference is to go, or there is no room."""
    cdef const uint8_t *p = base + f.owners.a
    cdef const uint8_t *end = base + f.owners.b
    cdef const uint8_t *q
    cdef int count = 0, more
    cdef Span uid
    cdef list done = []
    if p[0] != c'[':
        return True
    p += 1
    while True:
        more = jb_next_element(&p, end, &count)
        if more == 0:
            return True
        q = jb_value_end(p, end) if more > 0 else NULL
        if q == NULL:
            raise broken(p - base)
        uid = uid_in(base, p, q)
        p = q
        if uid.b == 0:
            continue
        old = text_of(base, uid)
        other = owners.get(old, MISSING)
        if other is MISSING:
            continue
        if other is None or not edit_uid(e, base, uid, other, alive):
            return False
        if f.managed.b and old not in done:   # an owner that is named twice is once enough in managedFields
            done.append(old)
            alive.append(other.encode())
            if not edit_managed(e, base, f.managed, old.encode(), <bytes>alive[-1]):
                return False


cdef edit_object_uids(Edits *e, const uint8_t *base, Py_ssize_t start, Py_ssize_t end, object_uids, list alive):
    cdef jb_walk w
    cdef int more
    cdef Span uid
    if jb_walk_start(&w, base + start, base + end) < 0:
        raise broken(start)
    while True:
        more = jb_walk_next(&w)
        if more == 0:
            return
        if more < 0 or jb_walk_skip(&w) < 0:
            raise broken(w.p - base)
        if not (jb_key_is(&w, b"involvedObject", 14) or jb_key_is(&w, b"regarding", 9)
                or jb_key_is(&w, b"related", 7)):
            continue
        uid = uid_in(base, w.val, w.p)
        other = object_uids.get(text_of(base, uid)) if uid.b else None
        if other is not None and not edit_uid(e, base, uid, other, alive):
            raise broken(w.val - base, "too many changes")


cdef bint edit_metadata(Edits *e, const uint8_t *base, const Fields *f, bytes version, bytes cluster,
                        owners, list alive) except *:
    """The usual changes, in place. False when metadata must be put together anew."""
    cdef const uint8_t *v = <const uint8_t *>PyBytes_AS_STRING(version)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(version)
    cdef bytes text = None, new = None, inserted = b""
    cdef const uint8_t *t
    cdef Notes notes
    if f.version.b and base[f.version.a] == c'"':
        add_edit(e, f.version.a + 1, f.version.b - 1, v, n)
    elif f.version.b:
        new = quoted_version(version)
        alive.append(new)
        add_edit(e, f.version.a, f.version.b, <const uint8_t *>PyBytes_AS_STRING(new), n + 2)
    else:
        inserted = b'"resourceVersion":' + quoted_version(version) + b","
    if cluster is not None:
        text = cluster_text(cluster)
        alive.append(text)
    if f.annotations.b and base[f.annotations.a] == c'{':
        if read_notes(&notes, base, f.annotations) < 0:
            raise broken(f.annotations.a)
        if notes.ours:
            return False
        if text is not None:
            t = <const uint8_t *>PyBytes_AS_STRING(text)
            n = PyBytes_GET_SIZE(text)
            if notes.cluster.b:   # only the value: between the key's colon and the comma
                add_edit(e, notes.cluster.a, notes.cluster.b, t + PyBytes_GET_SIZE(CLUSTER_KEY) + 1,
                         n - PyBytes_GET_SIZE(CLUSTER_KEY) - 2)
            else:
                add_edit(e, notes.first, notes.first, t, n if notes.first < notes.close else n - 1)
    elif text is not None:
        if f.annotations.b:
            new = b"{" + text[:-1] + b"}"
            alive.append(new)
            add_edit(e, f.annotations.a, f.annotations.b, <const uint8_t *>PyBytes_AS_STRING(new),
                     PyBytes_GET_SIZE(new))
        else:
            inserted += b'"annotations":{' + text[:-1] + b"},"
    if inserted:
        alive.append(inserted)
        add_edit(e, f.first, f.first, <const uint8_t *>PyBytes_AS_STRING(inserted),
                 PyBytes_GET_SIZE(inserted) - (f.first == f.close))
    return not owners or not f.owners.b or edit_owners(e, base, f, owners, alive)


cdef bytes splice_at(const uint8_t *base, Py_ssize_t length, Meta meta, bytes version, bytes cluster,
                     owners, Py_ssize_t end, object_uids):
    cdef Edits e
    cdef Fields *f = &meta.f
    cdef const uint8_t *q
    cdef jb_state s
    cdef list alive = []
    cdef bytes new
    if end < 0:
        end = meta.end
    if f.open == 0 or end > length:
        raise SpliceError("no metadata, or not the buffer it was found in")
    if f.next and (end < 0 or owners):
        read_remaining(&meta.f, base, length if end < 0 else end)
    if max(f.next, f.close) >= length or base[f.open] != c'{':
        raise SpliceError("not the buffer it was found in")
    if end < 0:
        s.depth, s.in_string, s.escaped = 1, 0, 0
        q = jb_skip(base + f.close + 1, base + length, &s)
        if q == NULL:
            raise broken(length)
        end = q - base
    if end <= max(f.next, f.close) + 1:
        raise SpliceError("end lies before the metadata's")
    check_version(version)
    e.count = 0
    e.growth = 0
    if not edit_metadata(&e, base, f, version, cluster, owners, alive):
        e.count = 0
        e.growth = 0
        read_remaining(&meta.f, base, end)
        new = None if cluster is None else cluster_text(cluster)[PyBytes_GET_SIZE(CLUSTER_KEY) + 1:-1]
        new = shown_metadata(base[f.open:f.close + 1], version, new, owners)
        alive.append(new)
        add_edit(&e, f.open, f.close + 1, <const uint8_t *>PyBytes_AS_STRING(new), PyBytes_GET_SIZE(new))
    if object_uids:
        edit_object_uids(&e, base, meta.start, end, object_uids, alive)
    return apply_edits(base, meta.start, end, &e)


def splice(buf, Meta meta not None, bytes version not None, bytes cluster, owners=None, Py_ssize_t end=-1,
           object_uids=None) -> bytes:
    """The object's bytes as clients see them.

    `version` (decimal) becomes metadata.resourceVersion; `cluster` (UTF-8, None: none) the annotation
    reclock.dev/cluster. `owners` maps the uids of owner references: to another uid, which overwrites it (in
    keys of managedFields too), or to None, which takes the reference out of ownerReferences into the
    annotation reclock.dev/member-owners. References in the annotation reclock.dev/host-owners are shown as
    ownerReferences, the annotation is not. `object_uids` maps uids of involvedObject, regarding and related.
    `end` is the offset behind the object if the caller knows it; else Meta.end, else it is searched.
    Everything else, white space too, stays as it was, unless references are taken out or put in: then
    white space between metadata's members goes. SpliceError as for `scan`.
    """
    cdef Py_buffer view
    if PyBytes_CheckExact(buf):
        return splice_at(<const uint8_t *>PyBytes_AS_STRING(buf), PyBytes_GET_SIZE(buf), meta, version, cluster,
                         owners, end, object_uids)
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        return splice_at(<const uint8_t *>view.buf, view.len, meta, version, cluster, owners, end, object_uids)
    finally:
        PyBuffer_Release(&view)
