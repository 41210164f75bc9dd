"""What other modules see of listing.pyx."""
from libc.stdint cimport uint64_t


cdef class Item:
    cdef readonly bytes raw
    cdef readonly object meta
    cdef readonly str namespace
    cdef readonly str name
    cdef readonly str key
    cdef readonly uint64_t version
    cdef readonly Py_ssize_t end
    cdef readonly Py_ssize_t source
