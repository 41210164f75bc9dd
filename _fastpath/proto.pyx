# cython: wraparound=True
"""Kubernetes' protobuf passes through as bytes, as JSON does in splice.pyx: found, never decoded.

Everything on the wire says its own length, so that a field is stepped over without a look at it: there is nothing
for vector instructions to do. `scan` costs the fields of ObjectMeta, `splice` one copy of the object. The parts:
proto_scan.pxi (the wire, where things stand), proto_edit.pxi (the way out), proto_stream.pxi (lists and watches in
chunks). Field numbers are of k8s.io/apimachinery's generated.proto; they never change. Bytes that are no protobuf
are refused when the walk meets the fault, and never read out of bounds.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

import json

from _fastpath.splice import CLUSTER_ANNOTATION, HOST_OWNERS_ANNOTATION, MEMBER_OWNERS_ANNOTATION, Owner, SpliceError

MAGIC = b"k8s\x00"

cdef bytes CLUSTER_KEY = CLUSTER_ANNOTATION.encode()
cdef bytes HOST_OWNERS_KEY = HOST_OWNERS_ANNOTATION.encode()
cdef bytes MEMBER_OWNERS_KEY = MEMBER_OWNERS_ANNOTATION.encode()
cdef object MISSING = object()


cdef object broken(Py_ssize_t at, str what="not protobuf, or cut short"):
    return SpliceError(f"{what} (near byte {at})")


include "proto_scan.pxi"
include "edits.pxi"
include "proto_edit.pxi"
include "proto_stream.pxi"
