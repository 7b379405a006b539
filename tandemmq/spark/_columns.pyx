# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Stored records as the buffers of Arrow columns, without a message object in between.

Its readable form is what it leaves anything odd to: read_records() and the makers in batches.py. None instead of
buffers says so. Cost per 1 KiB record with 7 properties: 0.9 us, where messages and makers need 4.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

from tandemmq.cluster.client.records import body_of

try:
    from isal.isal_zlib import crc32
except ImportError:                 # where it has no build: slower
    from zlib import crc32

cdef enum:
    MAGIC = 0xDAA320A7
    RECORD_MIN = 91
    COMPRESSED = 1
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    NAMES_MAX = 64                  # of one record: more are left to the readable form

ctypedef const uint8_t* Bytes

cdef const char* _digits = b"0123456789ABCDEF"


cdef inline uint32_t get32(Bytes at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int64_t get64(Bytes at) noexcept nogil:
    return <int64_t>((<uint64_t>get32(at) << 32) | get32(at + 4))


cdef struct Record:
    Bytes at
    Py_ssize_t size
    int sys_flag
    Bytes store_host                # after it the reconsume count
    Py_ssize_t store_size
    Bytes body
    Py_ssize_t body_size
    Bytes topic
    Py_ssize_t topic_size
    Bytes properties
    Py_ssize_t properties_size
    int64_t born_ms
    int64_t store_ms


cdef bint read_record(Bytes at, Py_ssize_t left, Record* r) noexcept nogil:
    """False for anything but a whole record of the first version."""
    cdef Py_ssize_t host, place
    if left < RECORD_MIN:
        return False
    r.at = at
    r.size = <Py_ssize_t>get32(at)
    if r.size < RECORD_MIN or r.size > left or get32(at + 4) != <uint32_t>MAGIC:
        return False
    r.sys_flag = <int>get32(at + 36)
    host = 20 if r.sys_flag & BORN_V6 else 8
    r.store_size = 20 if r.sys_flag & STORE_V6 else 8
    place = 48 + host + 8 + r.store_size + 12
    if place + 4 > r.size:
        return False
    r.born_ms = get64(at + 40)
    r.store_ms = get64(at + 48 + host)
    r.store_host = at + 56 + host
    r.body_size = <Py_ssize_t><int32_t>get32(at + place)
    place += 4
    if r.body_size < 0 or r.body_size > r.size - place - 3:
        return False
    r.body = at + place
    place += r.body_size
    r.topic_size = at[place]
    r.topic = at + place + 1
    place += 1 + r.topic_size
    if place + 2 > r.size:
        return False
    r.properties_size = (<Py_ssize_t>at[place] << 8) | at[place + 1]
    r.properties = at + place + 2
    return place + 2 + r.properties_size == r.size


cdef class _Texts:
    """An Arrow column of texts or bytes while it grows. Its room is known before."""

    cdef readonly bytearray offsets, data, valid
    cdef int32_t* ends
    cdef char* to
    cdef uint8_t* bits
    cdef Py_ssize_t rows, size
    cdef readonly Py_ssize_t nulls

    def __cinit__(self, Py_ssize_t rows, Py_ssize_t room, bint nullable):
        self.offsets = PyByteArray_FromStringAndSize(NULL, 4 * (rows + 1))
        self.data = PyByteArray_FromStringAndSize(NULL, room)
        self.ends = <int32_t*>PyByteArray_AS_STRING(self.offsets)
        self.ends[0] = 0
        self.to = PyByteArray_AS_STRING(self.data)
        self.bits = NULL
        if nullable:
            self.valid = PyByteArray_FromStringAndSize(NULL, (rows + 7) // 8)
            self.bits = <uint8_t*>PyByteArray_AS_STRING(self.valid)
            memset(self.bits, 0, (rows + 7) // 8)
        self.rows = self.size = self.nulls = 0

    cdef inline void put(self, const void* text, Py_ssize_t size) noexcept:
        memcpy(self.to + self.size, text, size)
        self.size += size
        if self.bits != NULL:
            self.bits[self.rows >> 3] |= <uint8_t>(1 << (self.rows & 7))
        self.rows += 1
        self.ends[self.rows] = <int32_t>self.size

    cdef inline void put_null(self) noexcept:
        self.nulls += 1
        self.rows += 1
        self.ends[self.rows] = <int32_t>self.size


cdef struct Entry:
    Bytes name
    Py_ssize_t name_size
    Bytes value
    Py_ssize_t value_size


cdef Py_ssize_t read_entries(Bytes at, Py_ssize_t size, Entry* entries) noexcept nogil:
    """As storage's decode_properties; -1 where a name comes twice, or there are too many."""
    cdef Bytes end = at + size
    cdef Bytes stop
    cdef Bytes mark
    cdef Py_ssize_t count = 0, i
    while at < end:
        stop = <Bytes>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        mark = <Bytes>memchr(at, 1, stop - at)
        if mark != NULL and mark > at and mark + 1 < stop:
            if count == NAMES_MAX:
                return -1
            for i in range(count):
                if entries[i].name_size == mark - at and memcmp(entries[i].name, at, mark - at) == 0:
                    return -1
            entries[count].name = at
            entries[count].name_size = mark - at
            entries[count].value = mark + 1
            entries[count].value_size = stop - mark - 1
            count += 1
        at = stop + 1
    return count


cdef bint is_ascii(Bytes at, Py_ssize_t size) noexcept nogil:
    cdef uint64_t word
    cdef Py_ssize_t i = 0
    while i + 8 <= size:
        memcpy(&word, at + i, 8)
        if word & <uint64_t>0x8080808080808080:
            return False
        i += 8
    while i < size:
        if at[i] & 0x80:
            return False
        i += 1
    return True


cdef bint is_text(Bytes at, Py_ssize_t size):
    """Whether it is UTF-8."""
    if is_ascii(at, size):
        return True
    try:
        (<const char*>at)[:size].decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


cdef inline bint named(Entry* entry, const char* name, Py_ssize_t size) noexcept nogil:
    return entry.name_size == size and memcmp(entry.name, name, size) == 0


cdef void put_placed(_Texts ids, Record* r) noexcept:
    """The broker's id of a record: store host and CommitLog offset as upper-case hex."""
    cdef char text[56]
    cdef Py_ssize_t i
    for i in range(r.store_size):
        text[2 * i] = _digits[r.store_host[i] >> 4]
        text[2 * i + 1] = _digits[r.store_host[i] & 15]
    for i in range(8):
        text[2 * r.store_size + 2 * i] = _digits[r.at[28 + i] >> 4]
        text[2 * r.store_size + 2 * i + 1] = _digits[r.at[28 + i] & 15]
    ids.put(text, 2 * r.store_size + 16)


def read_columns(list runs not None, bint with_bodies, bint with_properties):
    """The buffers of the columns of these runs of records; None for what is left to the readable form: other versions,
    damage, a name twice, what is not UTF-8, more than fits.

    A dict of rows and properties (how many there are of all rows), and of buffers:
      topic, body, key, tags, unique_id, names, values   with offsets, data, valid and nulls
      ends                                               int32: where each row's properties end
      queue_id                                           int32
      queue_offset, physical_offset                      int64
      born_time, store_time                              int64, microseconds
    body is None without with_bodies, names and values without with_properties.
    """
    cdef const uint8_t[::1] view
    cdef Py_ssize_t rows = 0, body_room = 0, text_room = 0, topic_room = 0, marks = 0, left, i, count, entry_count
    cdef Bytes at
    cdef Record r
    cdef Entry entries[NAMES_MAX]
    cdef dict unpacked = {}
    cdef object body, topic
    for run in runs:                # how much room, and whether there is anything odd
        view = run
        left = view.shape[0]
        at = &view[0] if left else NULL
        while left:
            if not read_record(at, left, &r):
                return None
            body = (<const char*>r.body)[:r.body_size]
            if <uint32_t>(crc32(body) & 0x7FFFFFFF) != get32(r.at + 8):
                return None
            if r.sys_flag & COMPRESSED:
                topic = (<const char*>r.topic)[:r.topic_size].decode("utf-8", "replace")
                body = unpacked[rows] = body_of(body, r.sys_flag, topic, get64(r.at + 20))
            body_room += PyBytes_GET_SIZE(body)
            if not is_text(r.topic, r.topic_size) or not is_text(r.properties, r.properties_size):
                return None
            topic_room += r.topic_size
            text_room += r.properties_size
            for i in range(r.properties_size):
                marks += r.properties[i] == 2
            rows += 1
            marks += 1              # the last one may have no mark behind it
            at += r.size
            left -= r.size
    if body_room > 0x7FFFFFFF or text_room + 56 * rows > 0x7FFFFFFF:
        return None
    cdef _Texts topics = _Texts(rows, topic_room, False)
    cdef _Texts bodies = _Texts(rows if with_bodies else 0, body_room if with_bodies else 0, False)
    cdef _Texts keys = _Texts(rows, text_room, True)
    cdef _Texts tags = _Texts(rows, text_room, True)
    cdef _Texts ids = _Texts(rows, text_room + 56 * rows, False)
    cdef _Texts names = _Texts(marks if with_properties else 0, text_room if with_properties else 0, False)
    cdef _Texts values = _Texts(marks if with_properties else 0, text_room if with_properties else 0, False)
    cdef bytearray ends_bytes = PyByteArray_FromStringAndSize(NULL, 4 * (rows + 1))
    cdef bytearray queue_bytes = PyByteArray_FromStringAndSize(NULL, 4 * rows)
    cdef bytearray offset_bytes = PyByteArray_FromStringAndSize(NULL, 8 * rows)
    cdef bytearray place_bytes = PyByteArray_FromStringAndSize(NULL, 8 * rows)
    cdef bytearray born_bytes = PyByteArray_FromStringAndSize(NULL, 8 * rows)
    cdef bytearray store_bytes = PyByteArray_FromStringAndSize(NULL, 8 * rows)
    cdef int32_t* ends = <int32_t*>PyByteArray_AS_STRING(ends_bytes)
    cdef int32_t* queue_ids = <int32_t*>PyByteArray_AS_STRING(queue_bytes)
    cdef int64_t* queue_offsets = <int64_t*>PyByteArray_AS_STRING(offset_bytes)
    cdef int64_t* places = <int64_t*>PyByteArray_AS_STRING(place_bytes)
    cdef int64_t* born = <int64_t*>PyByteArray_AS_STRING(born_bytes)
    cdef int64_t* stored = <int64_t*>PyByteArray_AS_STRING(store_bytes)
    cdef Py_ssize_t row = 0, total = 0, key, tag, unique
    ends[0] = 0
    for run in runs:
        view = run
        left = view.shape[0]
        at = &view[0] if left else NULL
        while left:
            read_record(at, left, &r)
            topics.put(r.topic, r.topic_size)
            if with_bodies:
                body = unpacked.get(row) if r.sys_flag & COMPRESSED else None
                if body is None:
                    bodies.put(r.body, r.body_size)
                else:
                    bodies.put(PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
            queue_ids[row] = <int32_t>get32(r.at + 12)
            queue_offsets[row] = get64(r.at + 20)
            places[row] = get64(r.at + 28)
            born[row] = r.born_ms * 1000
            stored[row] = r.store_ms * 1000
            entry_count = read_entries(r.properties, r.properties_size, entries)
            if entry_count < 0:
                return None
            key = tag = unique = -1
            for i in range(entry_count):
                if named(&entries[i], b"KEYS", 4):
                    key = i
                elif named(&entries[i], b"TAGS", 4):
                    tag = i
                elif named(&entries[i], b"UNIQ_KEY", 8):
                    unique = i
                if with_properties:
                    names.put(entries[i].name, entries[i].name_size)
                    values.put(entries[i].value, entries[i].value_size)
            total += entry_count
            if key < 0:
                keys.put_null()
            else:
                keys.put(entries[key].value, entries[key].value_size)
            if tag < 0:
                tags.put_null()
            else:
                tags.put(entries[tag].value, entries[tag].value_size)
            if unique < 0:
                put_placed(ids, &r)
            else:
                ids.put(entries[unique].value, entries[unique].value_size)
            row += 1
            ends[row] = <int32_t>total
            at += r.size
            left -= r.size
    return {
        "rows": rows,
        "properties": total,
        "topic": topics,
        "body": bodies if with_bodies else None,
        "key": keys,
        "tags": tags,
        "unique_id": ids,
        "names": names if with_properties else None,
        "values": values if with_properties else None,
        "ends": ends_bytes,
        "queue_id": queue_bytes,
        "queue_offset": offset_bytes,
        "physical_offset": place_bytes,
        "born_time": born_bytes,
        "store_time": store_bytes,
    }
