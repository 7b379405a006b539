"""What other compiled modules may cimport from storage._record: C over pointers, and the tails.

Meanings are those of storage/record.py and tail.py; nothing here checks what its comment does not
name.
"""

cdef enum:
    # Checksum of this file's other lines. A module built over another version of it would read and
    # write in the wrong places, so each compares its own value at import with tandemmq.storage._record's.
    LAYOUT = 0x0E3943CE

cdef struct DraftFields:
    # One message as pointers. properties are stored first, then, with one 0x02 at the joint,
    # properties_more (a batch envelope's; NULL and 0 for a single message).
    const unsigned char* topic
    Py_ssize_t topic_size
    const unsigned char* body
    Py_ssize_t body_size
    const unsigned char* properties
    Py_ssize_t properties_size
    const unsigned char* properties_more
    Py_ssize_t properties_more_size
    const unsigned char* born_host
    Py_ssize_t born_host_size       # 8 or 20
    const unsigned char* store_host
    Py_ssize_t store_host_size      # 8 or 20
    int queue_id
    int flag
    int sys_flag                    # its V6 bits are overwritten from the host sizes
    int reconsume_times
    long long queue_offset
    long long born_ms
    long long store_ms
    long long prepared_offset

cdef struct HeadFields:
    # One record in place; *_start are positions in the view that was read.
    Py_ssize_t position
    Py_ssize_t size                 # of a blank: bytes to `limit`
    Py_ssize_t body_start
    Py_ssize_t body_size
    Py_ssize_t topic_start
    Py_ssize_t topic_size
    Py_ssize_t properties_start
    Py_ssize_t properties_size
    int magic
    int body_crc
    int queue_id
    int flag
    int sys_flag
    long long queue_offset
    long long physical_offset
    long long store_ms

# three questions of record.py about a sys flag
cdef inline bint takes_queue_offset(int sys_flag) noexcept nogil:
    return sys_flag & 0xC == 0 or sys_flag & 0xC == 0x8

cdef inline bint has_queue_entry(int sys_flag) noexcept nogil:
    return takes_queue_offset(sys_flag) and not sys_flag & 0x80

cdef inline bint has_index_entries(int sys_flag) noexcept nogil:
    return sys_flag & 0xC != 0xC

# what read_head found
cdef enum:
    HEAD_NOTHING = 0                # no record, or not all of it before `end`
    HEAD_RECORD = 1
    HEAD_BLANK = 2                  # negative: whole but wrong, see CORRUPT_TEXTS in the .pyx

# CRC-32 as in zlib; mask with 0x7FFFFFFF for a record
cdef unsigned int crc32(const unsigned char* data, Py_ssize_t size) noexcept nogil

# Java's String.hashCode of UTF-8 bytes (malformed ones count as U+FFFD); a tags code is this, or 0
cdef int java_hash_c(const unsigned char* utf8, Py_ssize_t size) noexcept nogil

# the value of the last entry of that name, NULL when there is none
cdef const unsigned char* find_property(
    const unsigned char* properties, Py_ssize_t size,
    const char* name, Py_ssize_t name_size, Py_ssize_t* value_size,
) noexcept nogil

# the record at view[position:end]; limit is the view's length (the segment's end)
cdef int read_head(
    const unsigned char* view, Py_ssize_t position, Py_ssize_t end, Py_ssize_t limit,
    bint crc_checked, HeadFields* head,
) noexcept nogil

# bytes of a draft's properties as stored, and of its whole record
cdef Py_ssize_t stored_properties_size(const DraftFields* draft) noexcept nogil
cdef Py_ssize_t stored_size(const DraftFields* draft) noexcept nogil

# `size` bytes (stored_size) at `at`
cdef void write_record(
    unsigned char* at, const DraftFields* draft, Py_ssize_t size, long long physical_offset,
) noexcept nogil


cdef class LogTail:
    cdef unsigned char* staging     # its start is the byte at `committed`; NULL before the first open
    cdef Py_ssize_t room            # bytes it takes
    cdef int descriptor             # negative when closed: limit == position
    cdef public Py_ssize_t position
    cdef public Py_ssize_t committed
    cdef public Py_ssize_t limit
    cdef public long long segment_start
    cdef public long long last_store_ms
    cdef public long long committed_ms
    cdef readonly long long records
    cdef readonly long long record_bytes
    cdef readonly str failure

    # append() for a caller that has checked sizes and has no Draft: -1 when it does not fit.
    # draft.store_ms becomes max(store_ms, last_store_ms). Raises FlushFailed.
    cdef long long append_fields(self, DraftFields* draft) except -2

    # commit(), for a caller in C
    cdef int commit_staged(self) except -1
    cdef int _write_out(self, const unsigned char* data, Py_ssize_t size) except -1
    cdef unsigned char* _stage(self, Py_ssize_t size) except NULL


cdef class QueueTail:
    cdef public bytes topic
    cdef public int queue_id
    cdef public long long next_offset
