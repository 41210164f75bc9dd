# Which markers there are under each name: a hash table without an object for each name.

cdef inline str name_of(PyObject *slot):
    """Name of a slot: a marker, or a list of markers of one name."""
    cdef object one = <object>slot
    return (<Marker>one).name if type(one) is Marker else (<Marker>(<list>one)[0]).name


@cython.final
@cython.no_gc
cdef class NameTable:
    """name -> slot, where a slot is a Marker, or a list of Markers that all have that name.

    The name stands in the marker only: 8 bytes a slot instead of a dict's hash, key and value. Linear probing,
    at most three quarters full, deletion by shifting back. Slots are in no cycle, so the table is none's root.
    """
    cdef PyObject **slots
    cdef Py_ssize_t mask
    cdef Py_ssize_t used

    def __cinit__(self):
        self.slots = <PyObject **>PyMem_Calloc(8, sizeof(PyObject *))
        if self.slots == NULL:
            raise MemoryError
        self.mask = 7
        self.used = 0

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.slots != NULL:
            for i in range(self.mask + 1):
                Py_XDECREF(self.slots[i])
            PyMem_Free(self.slots)

    def __len__(self) -> int:
        return self.used

    cdef Py_ssize_t place(self, str name) except -1:
        """Where the name stands, or the empty place where it would."""
        cdef Py_ssize_t wanted = PyObject_Hash(name), i = wanted & self.mask
        cdef str there
        while self.slots[i] != NULL:
            there = name_of(self.slots[i])
            if there is name or (PyObject_Hash(there) == wanted and there == name):
                break
            i = (i + 1) & self.mask
        return i

    def get(self, str name not None):
        """The slot, None when there is none."""
        cdef Py_ssize_t i = self.place(name)
        return None if self.slots[i] == NULL else <object>self.slots[i]

    def put(self, slot not None):
        """Put a slot under its markers' name, in place of what is there."""
        cdef PyObject *old
        cdef Py_ssize_t i
        if type(slot) is not Marker and (type(slot) is not list or not slot or type(slot[0]) is not Marker):
            raise TypeError("a slot is a Marker or a list of them")
        i = self.place(name_of(<PyObject *>slot))
        old = self.slots[i]
        Py_INCREF(slot)
        self.slots[i] = <PyObject *>slot
        if old != NULL:
            Py_DECREF(<object>old)
            return
        self.used += 1
        if self.used * 4 > (self.mask + 1) * 3:
            self.grow()

    cdef int grow(self) except -1:
        cdef PyObject **old = self.slots
        cdef Py_ssize_t size = self.mask + 1, i, j
        cdef PyObject **fresh = <PyObject **>PyMem_Calloc(size * 2, sizeof(PyObject *))
        if fresh == NULL:
            raise MemoryError
        self.mask = size * 2 - 1
        for i in range(size):
            if old[i] != NULL:
                j = PyObject_Hash(name_of(old[i])) & self.mask
                while fresh[j] != NULL:
                    j = (j + 1) & self.mask
                fresh[j] = old[i]
        self.slots = fresh
        PyMem_Free(old)
        return 0

    def remove(self, str name not None):
        """Remove a slot; nothing where there is none."""
        cdef Py_ssize_t hole = self.place(name), i, home
        cdef PyObject *gone = self.slots[hole]
        if gone == NULL:
            return
        i = hole
        while True:
            i = (i + 1) & self.mask
            if self.slots[i] == NULL:
                break
            home = PyObject_Hash(name_of(self.slots[i])) & self.mask
            # It may move into the hole unless its home lies behind the hole, up to where it is.
            if ((i - home) & self.mask) >= ((i - hole) & self.mask):
                self.slots[hole] = self.slots[i]
                hole = i
        self.slots[hole] = NULL
        self.used -= 1
        Py_DECREF(<object>gone)

    def slots_now(self) -> list:
        """All slots, in no order. O(size)."""
        cdef Py_ssize_t i
        return [<object>self.slots[i] for i in range(self.mask + 1) if self.slots[i] != NULL]

    def names(self) -> list:
        """All names, in no order. O(size)."""
        cdef Py_ssize_t i
        return [name_of(self.slots[i]) for i in range(self.mask + 1) if self.slots[i] != NULL]
