"""Rows of a Table: `{"cells": […], "object": {…}}`."""


cdef tuple row_member(bytes row, bytes name):
    """(start, end) of a member's value in the row."""
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(row)
    cdef const uint8_t *end = base + PyBytes_GET_SIZE(row)
    cdef jb_walk w
    cdef int more
    if jb_walk_start(&w, jb_space(base, end), end) < 0:
        raise broken(0, "a row is no JSON object")
    while True:
        more = jb_walk_next(&w)
        if more == 0:
            raise SpliceError(f"a row has no {name.decode()!r}")
        if more < 0 or jb_walk_skip(&w) < 0:
            raise broken(w.p - base)
        if jb_key_is(&w, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)):
            return w.val - base, w.p - base


def table_row_object(bytes row not None):
    """(start, end) of the row's `object`: row[:start] + spliced + row[end:] is the row for a client."""
    return row_member(row, b"object")


def insert_cell(bytes row not None, Py_ssize_t index, bytes cell_json not None) -> bytes:
    """The row with one more cell before place `index` (at the end when there are fewer)."""
    a, b = row_member(row, b"cells")
    cells = elements(row[a:b])
    cells.insert(max(index, 0), cell_json)
    return row[:a] + b"[" + b",".join(cells) + b"]" + row[b:]


def permute_cells(bytes row not None, order) -> bytes:
    """The row with its cells in this order: `order[i]` is the place the new cell i had, -1 a null cell."""
    a, b = row_member(row, b"cells")
    cells = elements(row[a:b])
    picked = [cells[i] if 0 <= i < len(cells) else b"null" for i in order]
    return row[:a] + b"[" + b",".join(picked) + b"]" + row[b:]


def shown_row(bytes row not None, Py_ssize_t start, Py_ssize_t end, bytes obj not None, Py_ssize_t index,
              bytes cell_json not None) -> bytes:
    """`insert_cell` of row[:start] + obj + row[end:], in one copy where the cells stand before the object."""
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(row)
    cdef const uint8_t *p
    cdef const uint8_t *stop
    cdef const uint8_t *q
    cdef Py_ssize_t at, i = 0
    cdef bytes text
    cdef int count = 0, more = 1
    cdef Edits e
    if start < 0 or end < start or end > PyBytes_GET_SIZE(row):
        raise SpliceError("the object is not in the row")
    a, b = row_member(row, b"cells")
    p = base + <Py_ssize_t>a
    stop = base + <Py_ssize_t>b
    if p[0] != c'[' or b > start:
        return insert_cell(row[:start] + obj + row[end:], index, cell_json)
    p += 1
    at = p - base   # behind the last cell that stays before the new one
    while i < index:
        more = jb_next_element(&p, stop, &count)
        if more == 0:
            break
        q = jb_value_end(p, stop) if more > 0 else NULL
        if q == NULL:
            raise broken(p - base)
        p = q
        at = p - base
        i += 1
    if i:
        text = b"," + cell_json
    else:
        more = jb_next_element(&p, stop, &count)
        if more < 0:
            raise broken(p - base)
        text = cell_json + b"," if more else cell_json
    e.count = 0
    e.growth = 0
    add_edit(&e, at, at, <const uint8_t *>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    add_edit(&e, start, end, <const uint8_t *>PyBytes_AS_STRING(obj), PyBytes_GET_SIZE(obj))
    return apply_edits(base, 0, PyBytes_GET_SIZE(row), &e)
