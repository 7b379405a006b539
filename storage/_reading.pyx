# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The front of Reader's walk compiled: ordinary entries of one segment; it leaves every other to the loop in reading.py.

Held to that loop by tests/storage/test_reading_twins.py.

Cost per record: one look at size and magic, one slice object; 0.1 us, a tenth of the loop's.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.sequence cimport PySequence_GetSlice

cdef enum:
    ENTRY_BYTES = 20
    RECORD_BYTES_MIN = 91

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

cdef unsigned int MAGIC_V1 = 0xDAA320A7
cdef unsigned int MAGIC_V2 = 0xDAA320AB


def gather(
    chunk,
    view,
    long long segment_start,
    long long segment_end,
    long long hot_from,
    long long bytes_limit,
    Py_ssize_t count_limit,
    tag_codes,
    list records,
):
    """Append slices of `view` to `records` for the first entries of `chunk`.

    view           one segment; its bytes are the log's [segment_start, segment_end), the rest of it is not written
    hot_from       log offset; entries below it are read otherwise
    Returns (entries examined, bytes of the records, log offset of the last entry examined, whether a limit or the
    chunk's end was reached). When it was not, the next entry is one for the caller.
    """
    cdef Py_buffer entries
    cdef Py_buffer log
    cdef const unsigned char* at
    cdef const unsigned char* record
    cdef Py_ssize_t count, index = 0, position, found = 0
    cdef long long physical, total = 0, last = 0
    cdef int size
    cdef unsigned int magic
    cdef bint full = True
    PyObject_GetBuffer(chunk, &entries, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(view, &log, PyBUF_SIMPLE)
        try:
            if segment_end - segment_start > log.len:
                raise ValueError(f"{segment_end - segment_start} bytes written in a segment of {log.len}")
            at = <const unsigned char*>entries.buf
            count = entries.len // ENTRY_BYTES
            while index < count:
                physical = load64(at)
                size = load32(at + 8)
                if physical < hot_from or physical < segment_start or size < RECORD_BYTES_MIN or (
                    size > segment_end - physical
                ):
                    full = False
                    break
                if found and (found >= count_limit or total + size > bytes_limit):
                    break
                if tag_codes is None or load32(at + 16) in tag_codes:
                    position = <Py_ssize_t>(physical - segment_start)
                    record = <const unsigned char*>log.buf + position
                    magic = <unsigned int>load32(record + 4)
                    if load32(record) != size or (magic != MAGIC_V1 and magic != MAGIC_V2):
                        full = False
                        break
                    records.append(PySequence_GetSlice(view, position, position + size))
                    found += 1
                    total += size
                last = physical
                index += 1
                at += ENTRY_BYTES
        finally:
            PyBuffer_Release(&log)
    finally:
        PyBuffer_Release(&entries)
    return index, total, last, full
