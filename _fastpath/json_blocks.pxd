"""Declarations of json_blocks.h: skipping over JSON without decoding it."""
from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef extern from "json_blocks.h" nogil:
    ctypedef struct jb_state:
        int64_t depth
        uint32_t in_string
        uint32_t escaped

    ctypedef struct jb_walk:
        const uint8_t *p
        const uint8_t *end
        const uint8_t *raw
        const char *key
        Py_ssize_t key_len
        const uint8_t *val
        int count

    const uint8_t *jb_skip(const uint8_t *p, const uint8_t *end, jb_state *s) noexcept
    const uint8_t *jb_skip_bytes(const uint8_t *p, const uint8_t *end, jb_state *s) noexcept
    int jb_best_level() noexcept
    int jb_set_level(int level) noexcept
    const uint8_t *jb_string_end(const uint8_t *p, const uint8_t *end, int *has_escape) noexcept
    const uint8_t *jb_space(const uint8_t *p, const uint8_t *end) noexcept
    const uint8_t *jb_value_end(const uint8_t *p, const uint8_t *end) noexcept
    void jb_prefetch(const uint8_t *p, Py_ssize_t length) noexcept
    int jb_walk_start(jb_walk *w, const uint8_t *p, const uint8_t *end) noexcept
    int jb_walk_next(jb_walk *w) noexcept
    int jb_walk_skip(jb_walk *w) noexcept
    bint jb_key_is(const jb_walk *w, const char *name, Py_ssize_t length) noexcept
    int jb_next_element(const uint8_t **p, const uint8_t *end, int *count) noexcept
