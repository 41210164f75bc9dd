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
