# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The inner loop of dispatch, compiled. storage/derive.py says what everything means.

Estimate for a 1 KiB message with one key: 1 cache line of the record's head, 2 of its tail, one
queue entry, one index slot and entry; no Python object but the topic's bytes on its first use.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memchr, memcmp

from tandemmq.storage._record cimport (
    HEAD_BLANK,
    HEAD_NOTHING,
    HEAD_RECORD,
    LAYOUT,
    HeadFields,
    find_property,
    has_index_entries,
    has_queue_entry,
    java_hash_c,
    read_head,
)

from tandemmq.storage import _record as _compiled_record
from tandemmq.storage import derive as _readable
from tandemmq.storage.derive import (
    BLANK as _BLANK,
    BROKEN as _BROKEN,
    MORE as _MORE,
    Checked,
    Derived,
)
from tandemmq.storage.errors import StorageError
from tandemmq.storage.record import queue_tags_code

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline void tandem_put32(unsigned char *at, uint32_t v) {
        v = __builtin_bswap32(v); memcpy(at, &v, 4);
    }
    static inline void tandem_put64(unsigned char *at, uint64_t v) {
        v = __builtin_bswap64(v); memcpy(at, &v, 8);
    }
    static inline int32_t tandem_int_at(const unsigned char *at) {
        uint32_t v; memcpy(&v, at, 4); return (int32_t)__builtin_bswap32(v);
    }
    static inline int64_t tandem_long_at(const unsigned char *at) {
        uint64_t v; memcpy(&v, at, 8); return (int64_t)__builtin_bswap64(v);
    }
    """
    void put32 "tandem_put32" (unsigned char* at, unsigned int value) noexcept nogil
    void put64 "tandem_put64" (unsigned char* at, unsigned long long value) noexcept nogil
    int get32 "tandem_int_at" (const unsigned char* at) noexcept nogil
    long long get64 "tandem_long_at" (const unsigned char* at) noexcept nogil

cdef enum:
    MORE = 0
    BLANK = 1
    BROKEN = 2
    QUEUE_ENTRY_BYTES = 20
    HEADER_BYTES = 40
    SLOT_BYTES = 4
    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    FOUND_SLOTS = 64                # queues remembered during one call, by a hash of their names

_compiled_record.check_layout(LAYOUT, __name__)
assert (MORE, BLANK, BROKEN) == (_MORE, _BLANK, _BROKEN)

cdef const char* DELAY_TOPIC = b"SCHEDULE_TOPIC_XXXX"
cdef long long INT_MAX = 0x7FFFFFFF


cdef class QueueEnd:
    """See tandemmq.storage.derive.QueueEnd."""

    cdef unsigned char* base        # NULL when closed
    cdef public Py_ssize_t position
    cdef public Py_ssize_t limit
    cdef public long long next_offset
    cdef public long long physical_end
    cdef public long long arrived_code
    cdef public int queue_id
    cdef public bint used
    cdef public bint arrived
    cdef public str name
    cdef public object queue
    cdef bytes topic
    cdef Py_buffer buffer

    def __cinit__(self, str name, int queue_id, queue):
        self.base = NULL
        self.name = name
        self.topic = name.encode("utf-8", "surrogatepass")
        self.queue_id = queue_id
        self.queue = queue
        self.physical_end = -1

    def __dealloc__(self):
        if self.base != NULL:
            PyBuffer_Release(&self.buffer)

    def open(self, view not None, Py_ssize_t position, Py_ssize_t limit):
        self.close()
        PyObject_GetBuffer(view, &self.buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)
        if not 0 <= position <= limit <= self.buffer.len:
            PyBuffer_Release(&self.buffer)
            raise ValueError(f"[{position}, {limit}) of a file")
        self.base = <unsigned char*>self.buffer.buf
        self.position = position
        self.limit = limit

    def close(self):
        if self.base != NULL:
            PyBuffer_Release(&self.buffer)
            self.base = NULL
        self.limit = self.position

    cdef inline bint append_entry(
        self, long long physical_offset, int size, long long tags_code
    ) noexcept:
        cdef unsigned char* at = self.base + self.position
        if self.base == NULL or self.position + QUEUE_ENTRY_BYTES > self.limit:
            return False
        put64(at, <unsigned long long>physical_offset)
        put32(at + 8, <unsigned int>size)
        put64(at + 12, <unsigned long long>tags_code)
        self.position += QUEUE_ENTRY_BYTES
        self.next_offset += 1
        self.physical_end = physical_offset + size
        self.used = True
        return True

    def append(self, long long physical_offset, int size, long long tags_code):
        return self.append_entry(physical_offset, size, tags_code)


cdef class IndexEnd:
    """See tandemmq.storage.derive.IndexEnd."""

    cdef unsigned char* base        # NULL when closed
    cdef public Py_ssize_t entries_at
    cdef public int slots
    cdef public int slot_count
    cdef public int count
    cdef public int room
    cdef public long long begin_ms
    cdef public long long end_ms
    cdef public long long begin_physical
    cdef public long long end_physical
    cdef Py_buffer buffer

    def __cinit__(self, int slots):
        self.base = NULL
        self.slots = slots
        self.entries_at = HEADER_BYTES + SLOT_BYTES * <Py_ssize_t>slots
        self.count = 1

    def __dealloc__(self):
        if self.base != NULL:
            PyBuffer_Release(&self.buffer)

    def open(self, view not None, int room):
        self.close()
        PyObject_GetBuffer(view, &self.buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)
        if self.entries_at + QUEUE_ENTRY_BYTES * <Py_ssize_t>room > self.buffer.len:
            PyBuffer_Release(&self.buffer)
            raise ValueError(f"room for {room} entries in {self.buffer.len} bytes")
        self.base = <unsigned char*>self.buffer.buf
        self.begin_ms = get64(self.base)
        self.end_ms = get64(self.base + 8)
        self.begin_physical = get64(self.base + 16)
        self.end_physical = get64(self.base + 24)
        self.slot_count = get32(self.base + 32)
        self.count = max(1, get32(self.base + 36))
        self.room = room

    def close(self):
        if self.base != NULL:
            PyBuffer_Release(&self.buffer)
            self.base = NULL
        self.room = 0

    cdef inline bint put_entry(
        self, unsigned int hashed, long long physical_offset, long long store_ms
    ) noexcept:
        cdef int count = self.count, previous
        cdef long long seconds = 0
        cdef unsigned char* slot
        cdef unsigned char* at
        if self.base == NULL or count >= self.room:
            return False
        if self.begin_ms > 0 and store_ms > self.begin_ms:
            seconds = (store_ms - self.begin_ms) // 1000
            if seconds > INT_MAX:
                seconds = INT_MAX
        slot = self.base + HEADER_BYTES + SLOT_BYTES * (hashed % <unsigned int>self.slots)
        previous = get32(slot)
        if previous <= 0 or previous > count:
            previous = 0
            self.slot_count += 1
        at = self.base + self.entries_at + QUEUE_ENTRY_BYTES * <Py_ssize_t>count
        put32(at, hashed)
        put64(at + 4, <unsigned long long>physical_offset)
        put32(at + 12, <unsigned int>seconds)
        put32(at + 16, <unsigned int>previous)
        put32(slot, <unsigned int>count)
        if count == 1:
            self.begin_physical = physical_offset
            self.begin_ms = store_ms
        self.end_physical = physical_offset
        self.end_ms = store_ms
        self.count = count + 1
        return True

    def put(self, hashes, long long physical_offset, long long store_ms):
        cdef int first = self.count
        for hashed in hashes:
            if not self.put_entry(hashed, physical_offset, store_ms):
                break
        return self.count - first

    cpdef seal(self):
        cdef unsigned char* at = self.base
        if at != NULL:
            put64(at, <unsigned long long>self.begin_ms)
            put64(at + 8, <unsigned long long>self.end_ms)
            put64(at + 16, <unsigned long long>self.begin_physical)
            put64(at + 24, <unsigned long long>self.end_physical)
            put32(at + 32, <unsigned int>self.slot_count)
            put32(at + 36, <unsigned int>self.count)



# --- the loop -------------------------------------------------------------------------------------


cdef struct FoundQueue:
    void* end                       # a QueueEnd that `ends` keeps alive during the call


cdef QueueEnd _find_queue(
    sink, dict ends, const unsigned char* topic, Py_ssize_t size, int queue_id, long long physical
):
    cdef bytes name = PyBytes_FromStringAndSize(<const char*>topic, size)
    queues = ends.get(name)
    found = queues.get(queue_id) if queues is not None else None
    return found if found is not None else sink.find_end(name, queue_id, physical)


cdef inline bint _is_queue(
    QueueEnd end, const unsigned char* topic, Py_ssize_t size, int queue_id
) noexcept:
    return (
        end.queue_id == queue_id
        and len(end.topic) == size
        and memcmp(<const char*>end.topic, topic, size) == 0
    )


cdef unsigned int _key_hash(
    const unsigned char* topic, Py_ssize_t topic_size, unsigned int prefix,
    const unsigned char* key, Py_ssize_t size,
):
    """prefix: Java's hash of "topic#". The sum continues over the key when that is ASCII."""
    cdef Py_ssize_t at
    cdef unsigned int hashed = prefix
    for at in range(size):
        if key[at] >= 0x80:
            return _readable.key_hash(
                PyBytes_FromStringAndSize(<const char*>topic, topic_size),
                PyBytes_FromStringAndSize(<const char*>key, size),
            )
        hashed = 31 * hashed + key[at]
    if hashed <= 0x7FFFFFFFu:
        return hashed
    hashed = 0u - hashed
    return hashed if hashed <= 0x7FFFFFFFu else 0


cdef int _put_key(
    indexer, unsigned int hashed, long long physical, long long store_ms
) except -1:
    while not (<IndexEnd?>indexer.end).put_entry(hashed, physical, store_ms):
        indexer.end.seal()
        indexer.make_room()
    return 0


cdef int _index(
    indexer, const unsigned char* data, HeadFields* head, long long physical
) except -1:
    cdef const unsigned char* topic = data + head.topic_start
    cdef const unsigned char* properties = data + head.properties_start
    cdef const unsigned char* found
    cdef const unsigned char* stop
    cdef const unsigned char* space
    cdef Py_ssize_t size = 0
    cdef unsigned int prefix
    if physical < (<IndexEnd?>indexer.end).end_physical:
        return 0
    prefix = 31 * <unsigned int>java_hash_c(topic, head.topic_size) + <unsigned int>b"#"[0]
    found = find_property(properties, head.properties_size, b"UNIQ_KEY", 8, &size)
    if found != NULL:
        _put_key(
            indexer, _key_hash(topic, head.topic_size, prefix, found, size), physical, head.store_ms
        )
    found = find_property(properties, head.properties_size, b"KEYS", 4, &size)
    if found == NULL:
        return 0
    stop = found + size
    while found < stop:
        space = <const unsigned char*>memchr(found, 32, stop - found)
        if space == NULL:
            space = stop
        if space > found:
            _put_key(
                indexer, _key_hash(topic, head.topic_size, prefix, found, space - found),
                physical, head.store_ms,
            )
        found = space + 1
    return 0


def derive(
    const unsigned char[::1] view not None,
    Py_ssize_t position,
    Py_ssize_t end,
    long long log_offset,
    sink,
    indexer,
    delay_ms_by_level,
    list arrivals,
    long long records_max,
):
    """See tandemmq.storage.derive.derive."""
    cdef FoundQueue[FOUND_SLOTS] remembered
    cdef HeadFields head
    cdef QueueEnd queue
    cdef const unsigned char* data
    cdef const unsigned char* tags
    cdef Py_ssize_t limit = view.shape[0], last_record = -1, tags_size = 0
    cdef long long records = 0, done_ms = 0, code, physical
    cdef int stopped = MORE, found, slot
    cdef bint placed
    cdef dict ends = sink.ends if sink is not None else None
    cdef list arrived = []
    cdef object failure = None
    if not 0 <= position <= end <= limit:
        raise ValueError(f"[{position}, {end}) in {limit} bytes")
    if position == end:
        return Derived(position, 0, MORE, -1, 0, None)
    data = &view[0]
    for slot in range(FOUND_SLOTS):
        remembered[slot].end = NULL
    try:
        while records < records_max and end - position >= 8:
            found = read_head(data, position, end, limit, False, &head)
            if found == HEAD_BLANK:
                stopped = BLANK
                break
            if found == HEAD_NOTHING:
                if head.magic != MAGIC_V1 and head.magic != MAGIC_V2:
                    stopped = BROKEN
                break
            physical = log_offset + position
            if found != HEAD_RECORD or head.physical_offset != physical:
                stopped = BROKEN
                break

            if ends is not None and has_queue_entry(head.sys_flag):
                slot = _slot_of(data + head.topic_start, head.topic_size, head.queue_id)
                queue = <QueueEnd>remembered[slot].end if remembered[slot].end != NULL else None
                if queue is None or not _is_queue(
                    queue, data + head.topic_start, head.topic_size, head.queue_id
                ):
                    queue = _find_queue(
                        sink, ends, data + head.topic_start, head.topic_size, head.queue_id,
                        physical,
                    )
                    if queue is not None:
                        remembered[slot].end = <void*>queue
                if queue is not None:
                    if head.topic_size == 19 and memcmp(
                        data + head.topic_start, DELAY_TOPIC, 19
                    ) == 0:
                        code = queue_tags_code(
                            DELAY_TOPIC,
                            PyBytes_FromStringAndSize(
                                <const char*>data + head.properties_start, head.properties_size
                            ),
                            head.store_ms,
                            delay_ms_by_level,
                        )
                    else:
                        tags = find_property(
                            data + head.properties_start, head.properties_size,
                            b"TAGS", 4, &tags_size,
                        )
                        code = java_hash_c(tags, tags_size) if tags != NULL else 0
                    placed = (
                        head.queue_offset == queue.next_offset
                        and physical >= queue.physical_end
                        and queue.append_entry(physical, <int>head.size, code)
                    )
                    if not placed:
                        placed = queue.queue.put(physical, head.size, code, head.queue_offset)
                    if placed:
                        if not queue.arrived:
                            queue.arrived = True
                            queue.arrived_code = code
                            arrived.append(queue)
                        elif code != queue.arrived_code and arrivals is not None:
                            arrivals.append(
                                (queue.name, queue.queue_id, head.queue_offset, queue.arrived_code)
                            )
                            queue.arrived_code = code

            if indexer is not None and has_index_entries(head.sys_flag):
                _index(indexer, data, &head, physical)
            last_record = position
            position += head.size
            done_ms = head.store_ms
            records += 1
    except (OSError, StorageError) as error:
        failure = error
    finally:
        for queue in arrived:
            queue.arrived = False
        if indexer is not None:
            (<IndexEnd?>indexer.end).seal()
    if arrivals is not None:
        for queue in arrived:
            arrivals.append((queue.name, queue.queue_id, queue.next_offset, queue.arrived_code))
    return Derived(position, records, stopped, last_record, done_ms, failure)


cdef inline int _slot_of(const unsigned char* topic, Py_ssize_t size, int queue_id) noexcept:
    """Any spread will do: a wrong queue in the slot costs one dictionary look-up."""
    cdef unsigned int hashed = <unsigned int>queue_id + 7u * <unsigned int>size
    if size:
        hashed += 31u * topic[size - 1] + 17u * topic[size // 2]
    return <int>(hashed % FOUND_SLOTS)


def key_hash(const unsigned char[::1] topic not None, const unsigned char[::1] key not None):
    """See tandemmq.storage.derive.key_hash."""
    cdef unsigned int prefix = 35   # "#"
    if topic.shape[0]:
        prefix += 31 * <unsigned int>java_hash_c(&topic[0], topic.shape[0])
    if not key.shape[0]:
        return _readable.key_hash(bytes(topic), b"")
    return _key_hash(
        &topic[0] if topic.shape[0] else NULL, topic.shape[0], prefix, &key[0], key.shape[0]
    )


def check(
    const unsigned char[::1] view not None,
    Py_ssize_t position,
    Py_ssize_t end,
    long long log_offset,
    bint crc_checked,
):
    """See tandemmq.storage.derive.check."""
    cdef HeadFields head
    cdef Py_ssize_t limit = view.shape[0], last_record = -1
    cdef long long records = 0, store_ms = 0
    cdef const unsigned char* data
    cdef int found = HEAD_NOTHING
    if not 0 <= position <= end <= limit:
        raise ValueError(f"[{position}, {end}) in {limit} bytes")
    if position < end:
        data = &view[0]
        with nogil:
            while True:
                found = read_head(data, position, end, limit, crc_checked, &head)
                if found != HEAD_RECORD or head.physical_offset != log_offset + position:
                    break
                records += 1
                last_record = position
                store_ms = head.store_ms
                position += head.size
    if position == end or found == HEAD_BLANK:
        return Checked(position, position < end, "", records, last_record, store_ms)
    # Something is wrong here: the readable form finds the words for it.
    why = _readable.check(memoryview(view), position, end, log_offset, crc_checked).why
    return Checked(position, False, why, records, last_record, store_ms)
