# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""gathering.py compiled: the same records taken, the same copies made.

Cost per record: one look at its entry, one at its size and magic, 24 bytes of memory, and later one copy; no object.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.sequence cimport PySequence_GetSlice
from libc.string cimport memcpy

cdef enum:
    ENTRY_BYTES = 20
    RECORD_BYTES_MIN = 91
    PLACES = 32                 # of an answer of the usual size, which needs no memory beyond its object's

cdef extern from *:
    """
    #include <stdint.h>
    static inline int32_t tandem_load32(const unsigned char *at) {
        return (int32_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]);
    }
    static inline int64_t tandem_load64(const unsigned char *at) {
        return (int64_t)((uint64_t)(uint32_t)tandem_load32(at) << 32 | (uint32_t)tandem_load32(at + 4));
    }
    """
    int load32 "tandem_load32" (const unsigned char* at) noexcept nogil
    long long load64 "tandem_load64" (const unsigned char* at) noexcept nogil

cdef extern from "Python.h":
    object PyMemoryView_FromObject(object)
    Py_buffer* PyMemoryView_GET_BUFFER(object)

cdef unsigned int MAGIC_V1 = 0xDAA320A7
cdef unsigned int MAGIC_V2 = 0xDAA320AB

cdef struct Place:
    const unsigned char* at
    Py_ssize_t size
    Py_ssize_t owner            # index of the view that it is in


cdef class Records:
    """See tandemmq.storage.gathering.Records."""

    cdef readonly Py_ssize_t bytes
    cdef Py_ssize_t count
    cdef Py_ssize_t room
    cdef Place* places
    cdef Place few[PLACES]
    cdef list owners            # views of their own: whoever has the segment's may release that one

    def __cinit__(self):
        self.places = self.few
        self.room = PLACES
        self.owners = []

    def __dealloc__(self):
        if self.places != self.few:
            PyMem_Free(self.places)

    cdef int _own(self, view) except -1:
        self.owners.append(PyMemoryView_FromObject(view))
        return 0

    cdef int _take(self, const unsigned char* at, Py_ssize_t size) except -1:
        """One more, in the view that was owned last."""
        cdef Place* places
        if self.count == self.room:
            if self.places == self.few:
                places = <Place*>PyMem_Malloc(<size_t>(2 * self.room) * sizeof(Place))
                if places != NULL:
                    memcpy(places, self.few, sizeof(self.few))
            else:
                places = <Place*>PyMem_Realloc(self.places, <size_t>(2 * self.room) * sizeof(Place))
            if places == NULL:
                raise MemoryError
            self.places = places
            self.room *= 2
        self.places[self.count].at = at
        self.places[self.count].size = size
        self.places[self.count].owner = len(self.owners) - 1
        self.count += 1
        self.bytes += size
        return 0

    def add(self, record not None):
        cdef Py_buffer* buffer
        self._own(record)
        buffer = PyMemoryView_GET_BUFFER(self.owners[len(self.owners) - 1])
        self._take(<const unsigned char*>buffer.buf, buffer.len)

    def after(self, bytes head not None):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(head), i
        cdef bytes whole = PyBytes_FromStringAndSize(NULL, size + self.bytes)
        cdef unsigned char* at = <unsigned char*>PyBytes_AS_STRING(whole)
        memcpy(at, PyBytes_AS_STRING(head), <size_t>size)
        at += size
        for i in range(self.count):
            memcpy(at, self.places[i].at, <size_t>self.places[i].size)
            at += self.places[i].size
        return whole

    def clear(self):
        self.owners.clear()
        self.count = self.bytes = 0

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t index):
        cdef Py_ssize_t position
        if index < 0:
            index += self.count
        if not 0 <= index < self.count:
            raise IndexError(index)
        owner = self.owners[self.places[index].owner]
        position = self.places[index].at - <const unsigned char*>PyMemoryView_GET_BUFFER(owner).buf
        return PySequence_GetSlice(owner, position, position + self.places[index].size)


def gather(
    entries,
    Py_ssize_t at,
    Py_ssize_t stop,
    view,
    long long start,
    long long first,
    long long end,
    long long bytes_max,
    Py_ssize_t count_max,
    tag_codes,
    Records records not None,
):
    """See tandemmq.storage.gathering.gather."""
    cdef Py_buffer queue
    cdef const unsigned char* log
    cdef const unsigned char* entry
    cdef const unsigned char* record
    cdef Py_ssize_t owned = len(records.owners)
    cdef long long physical, last = -1
    cdef int size, code
    cdef int known_code = 0
    cdef bint known = False, wanted = True, full = True
    cdef unsigned int magic
    cdef Py_buffer* segment
    records._own(view)
    segment = PyMemoryView_GET_BUFFER(records.owners[owned])
    log = <const unsigned char*>segment.buf
    PyObject_GetBuffer(entries, &queue, PyBUF_SIMPLE)
    try:
        if not (start <= first and end - start <= segment.len and 0 <= at and stop <= queue.len):
            raise ValueError(f"[{first}, {end}) of a segment at {start}, [{at}, {stop}) of a queue")
        while at + ENTRY_BYTES <= stop:
            entry = <const unsigned char*>queue.buf + at
            physical = load64(entry)
            size = load32(entry + 8)
            if physical < first or size < RECORD_BYTES_MIN or physical > end or size > end - physical:
                full = False
                break
            if records.count and (records.count >= count_max or records.bytes + size > bytes_max):
                break
            if tag_codes is not None:
                code = load32(entry + 16)
                if not known or code != known_code:
                    wanted = code in tag_codes
                    known, known_code = True, code
            if wanted:
                record = log + (physical - start)
                magic = <unsigned int>load32(record + 4)
                if load32(record) != size or (magic != MAGIC_V1 and magic != MAGIC_V2):
                    full = False
                    break
                records._take(record, size)
            last = physical
            at += ENTRY_BYTES
    finally:
        PyBuffer_Release(&queue)
        if not records.count or records.places[records.count - 1].owner < owned:
            del records.owners[owned:]
    return at, last, full
