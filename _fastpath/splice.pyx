# cython: wraparound=True
# distutils: depends = _fastpath/json_blocks.h
"""Kubernetes objects pass through as bytes: their JSON is walked, never decoded.

Python owns the buffers and what is to be changed; this module finds offsets and builds the new bytes in
one copy. `scan` costs the bytes up to the end of `metadata`; `splice` one copy of the object. The parts:
scan.pxi (where things stand), edit.pxi (the way out),
rebuild.pxi (what edits in place cannot do, and the way in), stream.pxi (lists and
watches in chunks), table.pxi (rows). It finds, it does not validate: bytes of a member that are no JSON
are refused when the walk meets the fault, and never read out of bounds.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t
from libc.string cimport memchr, memcmp, memcpy

from _fastpath.json_blocks cimport (
    jb_best_level, jb_key_is, jb_next_element, jb_prefetch, jb_set_level, jb_skip, jb_space, jb_state, jb_string_end,
    jb_value_end, jb_walk, jb_walk_next, jb_walk_skip, jb_walk_start,
)

import json
from collections import namedtuple

CLUSTER_ANNOTATION = "reclock.dev/cluster"
HOST_OWNERS_ANNOTATION = "reclock.dev/host-owners"
MEMBER_OWNERS_ANNOTATION = "reclock.dev/member-owners"

cdef bytes CLUSTER_KEY = b'"reclock.dev/cluster"'
cdef bytes HOST_OWNERS_KEY = b'"reclock.dev/host-owners"'
cdef bytes MEMBER_OWNERS_KEY = b'"reclock.dev/member-owners"'
cdef object MISSING = object()

LEVELS = ("portable", "sse2", "avx2")


class SpliceError(ValueError):
    """The bytes are no JSON object of Kubernetes' shape, or end too early."""


def best_level() -> str:
    """Instruction set that this machine can use for skipping: one of LEVELS."""
    return LEVELS[jb_best_level()]


def set_level(level: str) -> None:
    """Use this instruction set (for tests and benchmarks). ValueError when the machine lacks it."""
    if level not in LEVELS or jb_set_level(LEVELS.index(level)) < 0:
        raise ValueError(f"level {level!r}: this machine has {', '.join(LEVELS[: jb_best_level() + 1])}")


jb_set_level(jb_best_level())

include "scan.pxi"
include "rebuild.pxi"
include "edits.pxi"
include "edit.pxi"
include "stream.pxi"
include "table.pxi"
