"""The puts of a transaction's markers as etcd's protobuf: what is sent is built once, without an object for each part.

    message TxnRequest { repeated Compare compare = 1; repeated RequestOp success = 2; repeated RequestOp failure = 3; }
    message RequestOp { oneof request { RangeRequest request_range = 1; PutRequest request_put = 2; … } }
    message PutRequest { bytes key = 1; bytes value = 2; … }
"""

cdef inline Py_ssize_t varint_size(uint64_t value) noexcept nogil:
    cdef Py_ssize_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef int write_field(Writer w, uint8_t tag, Py_ssize_t length) except -1:
    """A length-delimited field's head."""
    w.byte(tag)
    w.varint(length)
    return 0


cdef int write_put(Writer w, Writer value, bytes prefix, Marker one) except -1:
    """`success`, a `request_put` of `<prefix><namespace>/<name>/<cluster>`."""
    cdef Py_ssize_t namespace_size, name_size, cluster_size, key, put
    cdef const char *namespace = PyUnicode_AsUTF8AndSize(one.traits.namespace, &namespace_size)
    cdef const char *name = PyUnicode_AsUTF8AndSize(one.name, &name_size)
    cdef const char *cluster = PyUnicode_AsUTF8AndSize(one.traits.cluster, &cluster_size)
    key = PyBytes_GET_SIZE(prefix) + namespace_size + name_size + cluster_size + 2
    put = 2 + varint_size(key) + key + varint_size(value.size) + value.size
    write_field(w, 0x12, 1 + varint_size(put) + put)
    write_field(w, 0x12, put)
    write_field(w, 0x0A, key)
    w.bytes_(PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))
    w.bytes_(namespace, namespace_size)
    w.byte(c"/")
    w.bytes_(name, name_size)
    w.byte(c"/")
    w.bytes_(cluster, cluster_size)
    write_field(w, 0x12, value.size)
    return w.bytes_(value.data, value.size)


def puts(list markers not None, bytes prefix not None) -> bytes:
    """The part of a TxnRequest that puts these markers, in order, under `prefix`; join it with other parts."""
    cdef Writer w = Writer.__new__(Writer), value = Writer.__new__(Writer)
    cdef Marker one
    cdef int index = 0
    for one in markers:
        value.size = 0
        write_value(value, one, index)
        write_put(w, value, prefix, one)
        index += 1
    return w.done()
