# cython: language_level=3
# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""record.py's hot functions compiled: same names, same results, same errors.

tests/storage/test_record_twins.py holds the two against each other.
Cost per 1 KiB message appended from Python: one CRC pass, one memcpy of the body, the attribute
reads of the Draft; from C (append_fields) no Python object at all.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.errno cimport EINTR, EIO, errno
from libc.string cimport memchr, memcmp, memcpy, memset
from posix.unistd cimport pwrite

from tandemmq.storage.errors import (
    BatchMalformed,
    CorruptRecord,
    FlushFailed,
    MessageIllegal,
    MessageTooLarge,
    PropertiesTooLarge,
)
from tandemmq.storage.record import BatchItem, Head, Record
from tandemmq.storage.tail import DIRECT_BYTES as _DIRECT_BYTES
from tandemmq.storage.tail import STAGING_BYTES as _STAGING_BYTES

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    /* big-endian stores and loads: compilers turn these into bswap or movbe */
    static inline void tandem_put32(unsigned char *at, uint32_t v) {
        at[0] = (unsigned char)(v >> 24); at[1] = (unsigned char)(v >> 16);
        at[2] = (unsigned char)(v >> 8);  at[3] = (unsigned char)v;
    }
    static inline void tandem_put64(unsigned char *at, uint64_t v) {
        tandem_put32(at, (uint32_t)(v >> 32)); tandem_put32(at + 4, (uint32_t)v);
    }
    static inline int32_t tandem_get32(const unsigned char *at) {
        return (int32_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16
                         | (uint32_t)at[2] << 8 | (uint32_t)at[3]);
    }
    static inline int64_t tandem_get64(const unsigned char *at) {
        return (int64_t)((uint64_t)(uint32_t)tandem_get32(at) << 32
                         | (uint32_t)tandem_get32(at + 4));
    }
    static inline int tandem_get16(const unsigned char *at) {
        return (int16_t)((uint16_t)(at[0] << 8 | at[1]));
    }

    /* CRC-32, reflected polynomial 0xEDB88320, eight bytes a step through eight tables */
    static uint32_t tandem_crc_table[8][256];

    static uint32_t tandem_crc_sliced(uint32_t crc, const unsigned char *p, size_t n) {
        while (n >= 8) {
            uint32_t a = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8
                                | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
            crc = tandem_crc_table[7][a & 0xFF] ^ tandem_crc_table[6][a >> 8 & 0xFF]
                ^ tandem_crc_table[5][a >> 16 & 0xFF] ^ tandem_crc_table[4][a >> 24]
                ^ tandem_crc_table[3][p[4]] ^ tandem_crc_table[2][p[5]]
                ^ tandem_crc_table[1][p[6]] ^ tandem_crc_table[0][p[7]];
            p += 8; n -= 8;
        }
        while (n--)
            crc = tandem_crc_table[0][(crc ^ *p++) & 0xFF] ^ crc >> 8;
        return crc;
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <immintrin.h>
    #define TANDEM_PCLMUL 1
    static int tandem_has_pclmul;

    #define TANDEM_FOLD(x, k, next) _mm_xor_si128(_mm_xor_si128( \\
        _mm_clmulepi64_si128((x), (k), 0x00), _mm_clmulepi64_si128((x), (k), 0x11)), (next))
    #define TANDEM_LOAD(p) _mm_loadu_si128((const __m128i *)(p))

    /* Folding by carry-less multiplication (Gopal et al., Intel 2009): n is a multiple of 16 and
       at least 64. The constants are x**(distance) mod P, bit-reflected. */
    __attribute__((target("pclmul")))
    static uint32_t tandem_crc_folded(uint32_t crc, const unsigned char *p, size_t n) {
        const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
        const __m128i by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
        const __m128i by_64 = _mm_set_epi64x(0, 0x0163cd6124);
        const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
        const __m128i low_words = _mm_set_epi32(0, -1, 0, -1);
        __m128i a = _mm_xor_si128(TANDEM_LOAD(p), _mm_cvtsi32_si128((int)crc));
        __m128i b = TANDEM_LOAD(p + 16), c = TANDEM_LOAD(p + 32), d = TANDEM_LOAD(p + 48), t;
        for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
            a = TANDEM_FOLD(a, by_512, TANDEM_LOAD(p));
            b = TANDEM_FOLD(b, by_512, TANDEM_LOAD(p + 16));
            c = TANDEM_FOLD(c, by_512, TANDEM_LOAD(p + 32));
            d = TANDEM_FOLD(d, by_512, TANDEM_LOAD(p + 48));
        }
        a = TANDEM_FOLD(a, by_128, b);
        a = TANDEM_FOLD(a, by_128, c);
        a = TANDEM_FOLD(a, by_128, d);
        for (; n >= 16; p += 16, n -= 16)
            a = TANDEM_FOLD(a, by_128, TANDEM_LOAD(p));
        /* 128 bits to 96, to 64, to 32 */
        a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_128, 0x10));
        t = _mm_srli_si128(a, 4);
        a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_words), by_64, 0x00), t);
        t = _mm_clmulepi64_si128(_mm_and_si128(a, low_words), barrett, 0x10);
        t = _mm_clmulepi64_si128(_mm_and_si128(t, low_words), barrett, 0x00);
        a = _mm_xor_si128(a, t);
        return (uint32_t)_mm_cvtsi128_si32(_mm_srli_si128(a, 4));
    }
    #endif

    static uint32_t tandem_crc32(const unsigned char *p, size_t n) {
        uint32_t crc = 0xFFFFFFFFu;
    #ifdef TANDEM_PCLMUL
        if (n >= 64 && tandem_has_pclmul) {
            size_t folded = n & ~(size_t)15;
            crc = tandem_crc_folded(crc, p, folded);
            p += folded; n -= folded;
        }
    #endif
        return ~tandem_crc_sliced(crc, p, n);
    }

    static void tandem_crc_prepare(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t crc = i;
            for (int bit = 0; bit < 8; bit++)
                crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
            tandem_crc_table[0][i] = crc;
        }
        for (uint32_t i = 0; i < 256; i++)
            for (int t = 1; t < 8; t++)
                tandem_crc_table[t][i] = tandem_crc_table[t - 1][i] >> 8
                    ^ tandem_crc_table[0][tandem_crc_table[t - 1][i] & 0xFF];
    #ifdef TANDEM_PCLMUL
        __builtin_cpu_init();
        tandem_has_pclmul = __builtin_cpu_supports("pclmul") != 0;
    #endif
    }
    """
    void put32 "tandem_put32" (unsigned char* at, unsigned int value) noexcept nogil
    void put64 "tandem_put64" (unsigned char* at, unsigned long long value) noexcept nogil
    int get32 "tandem_get32" (const unsigned char* at) noexcept nogil
    long long get64 "tandem_get64" (const unsigned char* at) noexcept nogil
    int get16 "tandem_get16" (const unsigned char* at) noexcept nogil
    unsigned int tandem_crc32(const unsigned char* data, size_t size) noexcept nogil
    void tandem_crc_prepare() noexcept nogil

tandem_crc_prepare()

cdef enum:
    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    MAGIC_BLANK = -875286124
    BLANK_BYTES = 8
    RECORD_BYTES_MIN = 91
    TOPIC_BYTES_MAX_V1 = 127
    BYTES_MAX = 32767               # of topic and of properties
    BORN_V6 = 0x10
    STORE_V6 = 0x20

cdef long long RECORD_BYTES_MAX = (1 << 31) - 1

cdef tuple CORRUPT_TEXTS = (        # by -read_head()
    "",
    "shorter than any record",
    "shorter than its hosts need",
    "body length beyond its end",
    "topic length beyond its end",
    "lengths do not add up",
    "body checksum is wrong",
)


# --- C level --------------------------------------------------------------------------------------


cdef unsigned int crc32(const unsigned char* data, Py_ssize_t size) noexcept nogil:
    return tandem_crc32(data, <size_t>size)


cdef inline bint _continues(
    const unsigned char* at, const unsigned char* end, int low, int high
) noexcept nogil:
    return at < end and low <= at[0] <= high


cdef int java_hash_c(const unsigned char* utf8, Py_ssize_t size) noexcept nogil:
    """Malformed bytes hash as Python and Java decode them: U+FFFD per maximal well-formed prefix."""
    cdef const unsigned char* at = utf8
    cdef const unsigned char* end = utf8 + size
    cdef unsigned int result = 0, point
    cdef int lead, more, low, high
    while at < end:
        lead = at[0]
        at += 1
        if lead < 0x80:
            result = 31 * result + <unsigned int>lead
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
            point = lead & 0x1F
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            point = lead & 0x0F
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            point = lead & 0x07
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            result = 31 * result + 0xFFFD
            continue
        while more and _continues(at, end, low, high):
            point = point << 6 | (at[0] & 0x3Fu)
            at += 1
            more -= 1
            low = 0x80
            high = 0xBF
        if more:
            result = 31 * result + 0xFFFD
        elif point >= 0x10000:
            result = 31 * result + (0xD800 + ((point - 0x10000) >> 10))
            result = 31 * result + (0xDC00 + ((point - 0x10000) & 0x3FF))
        else:
            result = 31 * result + point
    return <int>result


cdef const unsigned char* find_property(
    const unsigned char* properties, Py_ssize_t size,
    const char* name, Py_ssize_t name_size, Py_ssize_t* value_size,
) noexcept nogil:
    cdef const unsigned char* at = properties
    cdef const unsigned char* end = properties + size
    cdef const unsigned char* entry_end
    cdef const unsigned char* found = NULL
    while at < end:
        entry_end = <const unsigned char*>memchr(at, 2, end - at)
        if entry_end == NULL:
            entry_end = end
        if (
            entry_end - at > name_size + 1
            and at[name_size] == 1
            and memcmp(at, name, name_size) == 0
        ):
            found = at + name_size + 1
            value_size[0] = entry_end - found
        at = entry_end + 1
    return found


cdef int read_head(
    const unsigned char* view, Py_ssize_t position, Py_ssize_t end, Py_ssize_t limit,
    bint crc_checked, HeadFields* head,
) noexcept nogil:
    cdef const unsigned char* at = view + position
    cdef Py_ssize_t room = end - position, cursor, length, store_at
    cdef int length_bytes
    if room < BLANK_BYTES:
        return HEAD_NOTHING
    head.position = position
    head.size = get32(at)
    head.magic = get32(at + 4)
    if head.magic == MAGIC_BLANK:
        head.size = limit - position
        return HEAD_BLANK
    if (head.magic != MAGIC_V1 and head.magic != MAGIC_V2) or head.size > room:
        return HEAD_NOTHING
    if head.size < RECORD_BYTES_MIN:
        return -1
    head.body_crc = get32(at + 8)
    head.queue_id = get32(at + 12)
    head.flag = get32(at + 16)
    head.queue_offset = get64(at + 20)
    head.physical_offset = get64(at + 28)
    head.sys_flag = get32(at + 36)
    store_at = 68 if head.sys_flag & BORN_V6 else 56
    cursor = store_at + (44 if head.sys_flag & STORE_V6 else 32)
    if cursor > head.size:
        return -2
    head.store_ms = get64(at + store_at)
    length = get32(at + cursor - 4)
    head.body_start = position + cursor
    head.body_size = length if length > 0 else 0
    cursor += head.body_size
    length_bytes = 1 if head.magic == MAGIC_V1 else 2
    if cursor + length_bytes > head.size:
        return -3
    length = (<signed char>at[cursor]) if length_bytes == 1 else get16(at + cursor)
    cursor += length_bytes
    if length < 0 or cursor + length + 2 > head.size:
        return -4
    head.topic_start = position + cursor
    head.topic_size = length
    cursor += length
    length = get16(at + cursor)
    cursor += 2
    head.properties_start = position + cursor
    head.properties_size = length if length > 0 else 0
    if cursor + head.properties_size != head.size:
        return -5
    if crc_checked and head.body_size > 0 and (
        <int>(crc32(view + head.body_start, head.body_size) & 0x7FFFFFFFu) != head.body_crc
    ):
        return -6
    return HEAD_RECORD


cdef inline bint _joint_needed(const DraftFields* draft) noexcept nogil:
    return (
        draft.properties_size > 0 and draft.properties_more_size > 0
        and draft.properties[draft.properties_size - 1] != 2
    )


cdef Py_ssize_t stored_properties_size(const DraftFields* draft) noexcept nogil:
    return draft.properties_size + draft.properties_more_size + (1 if _joint_needed(draft) else 0)


cdef Py_ssize_t stored_size(const DraftFields* draft) noexcept nogil:
    return (
        74 + draft.born_host_size + draft.store_host_size + draft.body_size + draft.topic_size
        + (1 if draft.topic_size <= TOPIC_BYTES_MAX_V1 else 2) + stored_properties_size(draft)
    )


cdef void write_record(
    unsigned char* at, const DraftFields* draft, Py_ssize_t size, long long physical_offset,
) noexcept nogil:
    cdef int sys_flag = draft.sys_flag & ~(BORN_V6 | STORE_V6)
    cdef bint wide_topic = draft.topic_size > TOPIC_BYTES_MAX_V1
    if draft.born_host_size == 20:
        sys_flag |= BORN_V6
    if draft.store_host_size == 20:
        sys_flag |= STORE_V6
    put32(at, <unsigned int>size)
    put32(at + 4, <unsigned int>(MAGIC_V2 if wide_topic else MAGIC_V1))
    put32(at + 8, crc32(draft.body, draft.body_size) & 0x7FFFFFFFu)
    put32(at + 12, <unsigned int>draft.queue_id)
    put32(at + 16, <unsigned int>draft.flag)
    put64(at + 20, <unsigned long long>draft.queue_offset)
    put64(at + 28, <unsigned long long>physical_offset)
    put32(at + 36, <unsigned int>sys_flag)
    put64(at + 40, <unsigned long long>draft.born_ms)
    memcpy(at + 48, draft.born_host, draft.born_host_size)
    at += 48 + draft.born_host_size
    put64(at, <unsigned long long>draft.store_ms)
    memcpy(at + 8, draft.store_host, draft.store_host_size)
    at += 8 + draft.store_host_size
    put32(at, <unsigned int>draft.reconsume_times)
    put64(at + 4, <unsigned long long>draft.prepared_offset)
    put32(at + 12, <unsigned int>draft.body_size)
    memcpy(at + 16, draft.body, draft.body_size)
    at += 16 + draft.body_size
    if wide_topic:
        at[0] = <unsigned char>(draft.topic_size >> 8)
        at += 1
    at[0] = <unsigned char>(draft.topic_size & 0xFF)
    memcpy(at + 1, draft.topic, draft.topic_size)
    at += 1 + draft.topic_size
    cdef Py_ssize_t properties_size = stored_properties_size(draft)
    at[0] = <unsigned char>(properties_size >> 8)
    at[1] = <unsigned char>(properties_size & 0xFF)
    at += 2
    memcpy(at, draft.properties, draft.properties_size)
    at += draft.properties_size
    if _joint_needed(draft):
        at[0] = 2
        at += 1
    if draft.properties_more_size > 0:
        memcpy(at, draft.properties_more, draft.properties_more_size)


# --- Draft -> DraftFields -------------------------------------------------------------------------


cdef bytes _topic_bytes(draft):
    cdef bytes topic = (<str?>draft.topic).encode("utf-8", "replace")
    if PyBytes_GET_SIZE(topic) > BYTES_MAX:
        raise MessageIllegal(
            f"topic is {PyBytes_GET_SIZE(topic)} bytes, at most {BYTES_MAX} fit a record"
        )
    return topic


cdef inline const unsigned char* _bytes_at(bytes data):
    return <const unsigned char*>PyBytes_AS_STRING(data)


cdef int _set_shape(DraftFields* fields, bytes topic, bytes born_host, bytes store_host) except -1:
    """Topic and hosts; they must outlive `fields`."""
    memset(fields, 0, sizeof(DraftFields))
    fields.topic = _bytes_at(topic)
    fields.topic_size = PyBytes_GET_SIZE(topic)
    fields.born_host = _bytes_at(born_host)
    fields.born_host_size = PyBytes_GET_SIZE(born_host)
    fields.store_host = _bytes_at(store_host)
    fields.store_host_size = PyBytes_GET_SIZE(store_host)
    return 0


cdef Py_ssize_t _checked_size(const DraftFields* fields) except -1:
    cdef Py_ssize_t properties_size = stored_properties_size(fields), size
    if properties_size > BYTES_MAX:
        raise PropertiesTooLarge(
            f"properties are {properties_size} bytes, at most {BYTES_MAX} fit a record"
        )
    if (fields.born_host_size != 8 and fields.born_host_size != 20) or (
        fields.store_host_size != 8 and fields.store_host_size != 20
    ):
        raise ValueError(
            f"hosts must be 8 or 20 bytes, got {fields.born_host_size} and {fields.store_host_size}"
        )
    size = stored_size(fields)
    if size > RECORD_BYTES_MAX:
        raise MessageTooLarge(
            f"record would be {size} bytes, at most {RECORD_BYTES_MAX} fit its size field"
        )
    return size


cdef int _set_numbers(
    DraftFields* fields, draft, flag, queue_offset, store_ms, prepared_offset
) except -1:
    try:
        fields.queue_id = draft.queue_id
        fields.flag = flag
        fields.sys_flag = draft.sys_flag
        fields.reconsume_times = draft.reconsume_times
        fields.queue_offset = queue_offset
        fields.born_ms = draft.born_ms
        fields.store_ms = store_ms
        fields.prepared_offset = prepared_offset
    except OverflowError as error:
        raise MessageIllegal(f"a number of the message does not fit its field: {error}") from error
    return 0


def encode(draft, queue_offset, physical_offset, store_ms):
    """See tandemmq.storage.record.encode."""
    cdef DraftFields fields
    cdef Py_buffer body
    cdef long long offset
    cdef bytes topic = _topic_bytes(draft), born = draft.born_host, store = draft.store_host
    cdef bytes properties = draft.properties, record
    _set_shape(&fields, topic, born, store)
    fields.properties = _bytes_at(properties)
    fields.properties_size = PyBytes_GET_SIZE(properties)
    PyObject_GetBuffer(draft.body, &body, PyBUF_SIMPLE)
    try:
        fields.body = <const unsigned char*>body.buf
        fields.body_size = body.len
        size = _checked_size(&fields)
        _set_numbers(&fields, draft, draft.flag, queue_offset, store_ms, draft.prepared_offset)
        try:
            offset = physical_offset
        except OverflowError as error:
            raise MessageIllegal(
                f"a number of the message does not fit its field: {error}"
            ) from error
        record = PyBytes_FromStringAndSize(NULL, size)
        write_record(<unsigned char*>PyBytes_AS_STRING(record), &fields, size, offset)
    finally:
        PyBuffer_Release(&body)
    return record


# --- reading --------------------------------------------------------------------------------------


cdef object _corrupt(Py_ssize_t position, Py_ssize_t size, int code):
    return CorruptRecord(
        f"record at {position}, {size} bytes: {CORRUPT_TEXTS[-code]}", position, size
    )


cdef inline bytes _slice(const unsigned char* view, Py_ssize_t start, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char*>view + start, size)


def decode(const unsigned char[::1] view not None, Py_ssize_t position=0, *, bint crc_checked=True):
    """See tandemmq.storage.record.decode."""
    cdef Py_ssize_t length = view.shape[0]
    cdef Py_ssize_t room = length - position
    cdef HeadFields head
    cdef int found
    cdef Py_ssize_t born_size, store_size
    if position < 0 or room < BLANK_BYTES:
        raise CorruptRecord(f"no record at {position}: {max(0, room)} bytes left", position)
    cdef const unsigned char* data = &view[0]
    found = read_head(data, position, length, length, crc_checked, &head)
    if found < 0:
        raise _corrupt(position, head.size, found)
    if head.magic != MAGIC_V1 and head.magic != MAGIC_V2:
        raise CorruptRecord(
            f"no record at {position}: magic {<unsigned int>head.magic:#010x}", position
        )
    if found != HEAD_RECORD:
        raise CorruptRecord(
            f"record at {position}, {head.size} bytes: only {room} bytes left", position
        )
    born_size = 20 if head.sys_flag & BORN_V6 else 8
    store_size = 20 if head.sys_flag & STORE_V6 else 8
    cdef const unsigned char* at = data + position
    return Record(
        head.size,
        1 if head.magic == MAGIC_V1 else 2,
        head.body_crc,
        head.queue_id,
        head.flag,
        head.queue_offset,
        head.physical_offset,
        head.sys_flag,
        get64(at + 40),
        _slice(at, 48, born_size),
        head.store_ms,
        _slice(at, 56 + born_size, store_size),
        get32(at + 56 + born_size + store_size),
        get64(at + 60 + born_size + store_size),
        _slice(data, head.body_start, head.body_size),
        PyUnicode_DecodeUTF8(<char*>data + head.topic_start, head.topic_size, "replace"),
        _slice(data, head.properties_start, head.properties_size),
    )


cdef object _new_tuple = tuple.__new__  # NamedTuple's own constructor takes twice the time


def scan(
    const unsigned char[::1] view not None, Py_ssize_t start, Py_ssize_t end,
    *, bint crc_checked=False,
):
    """See tandemmq.storage.record.scan."""
    cdef Py_ssize_t length = view.shape[0], position = start, value_size = 0
    cdef const unsigned char* data
    cdef const unsigned char* tags
    cdef HeadFields head
    cdef int found
    if not 0 <= start <= end <= length:
        raise ValueError(f"scan of [{start}, {end}) in {length} bytes")
    if length == 0:
        return
    data = &view[0]
    while True:
        found = read_head(data, position, end, length, crc_checked, &head)
        if found == HEAD_NOTHING:
            return
        if found == HEAD_BLANK:
            yield Head(position, head.size, True, b"", 0, 0, 0, 0, 0, 0, b"")
            return
        if found < 0:
            raise _corrupt(position, head.size, found)
        tags = find_property(
            data + head.properties_start, head.properties_size, b"TAGS", 4, &value_size
        )
        yield _new_tuple(Head, (
            position,
            head.size,
            False,
            _slice(data, head.topic_start, head.topic_size),
            head.queue_id,
            head.queue_offset,
            head.physical_offset,
            head.sys_flag,
            head.store_ms,
            java_hash_c(tags, value_size) if tags != NULL else 0,
            _slice(data, head.properties_start, head.properties_size),
        ))
        position += head.size


# --- properties and hashes ------------------------------------------------------------------------


def decode_properties(const unsigned char[::1] properties not None):
    """See tandemmq.storage.record.decode_properties."""
    cdef dict found = {}
    cdef Py_ssize_t size = properties.shape[0]
    if size == 0:
        return found
    cdef const unsigned char* at = &properties[0]
    cdef const unsigned char* end = at + size
    cdef const unsigned char* entry_end
    cdef const unsigned char* joint
    while at < end:
        entry_end = <const unsigned char*>memchr(at, 2, end - at)
        if entry_end == NULL:
            entry_end = end
        joint = <const unsigned char*>memchr(at, 1, entry_end - at)
        if joint != NULL and joint > at and joint + 1 < entry_end:
            name = PyUnicode_DecodeUTF8(<char*>at, joint - at, "replace")
            found[name] = PyUnicode_DecodeUTF8(<char*>joint + 1, entry_end - joint - 1, "replace")
        at = entry_end + 1
    return found


def get_property(bytes properties not None, bytes name not None):
    """See tandemmq.storage.record.get_property."""
    cdef Py_ssize_t value_size = 0
    cdef const unsigned char* value = find_property(
        _bytes_at(properties), PyBytes_GET_SIZE(properties),
        PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), &value_size,
    )
    if value == NULL:
        return None
    return PyBytes_FromStringAndSize(<const char*>value, value_size)


def java_hash(str text not None):
    """See tandemmq.storage.record.java_hash."""
    cdef unsigned int result = 0, point
    cdef Py_UCS4 character
    for character in text:
        point = <unsigned int>character
        if point >= 0x10000:
            result = 31 * result + (0xD800 + ((point - 0x10000) >> 10))
            result = 31 * result + (0xDC00 + ((point - 0x10000) & 0x3FF))
        else:
            result = 31 * result + point
    return <int>result


def tags_code(str tags):
    """See tandemmq.storage.record.tags_code."""
    return java_hash(tags) if tags else 0


# --- batches --------------------------------------------------------------------------------------


cdef Py_ssize_t _read_element(
    const unsigned char* base, Py_ssize_t at, Py_ssize_t end, DraftFields* fields
) except -1:
    """Point flag, body and properties of `fields` at the message at `at` of a batch body; where the next one is."""
    cdef Py_ssize_t body_start = at + 20, body_end, after
    cdef int body_bytes, properties_bytes
    if end - at < 20:
        raise BatchMalformed(f"batch element at {at}: {end - at} bytes left for its head")
    body_bytes = get32(base + at + 16)
    body_end = body_start + body_bytes
    if body_bytes < 0 or body_end + 2 > end:
        raise BatchMalformed(
            f"batch element at {at}: body of {body_bytes} bytes, {end - body_start} left"
        )
    properties_bytes = get16(base + body_end)
    after = body_end + 2 + properties_bytes
    if properties_bytes < 0 or after > end:
        raise BatchMalformed(
            f"batch element at {at}: properties of {properties_bytes} bytes, "
            f"{end - body_end - 2} left"
        )
    fields.flag = get32(base + at + 12)
    fields.body = base + body_start
    fields.body_size = body_bytes
    fields.properties = base + body_end + 2
    fields.properties_size = properties_bytes
    return after


def split_batch(body):
    """See tandemmq.storage.record.split_batch."""
    view = memoryview(body)
    cdef const unsigned char[::1] data = view
    cdef Py_ssize_t end = data.shape[0], at = 0, after
    cdef DraftFields fields
    cdef const unsigned char* base
    cdef list items = []
    if end == 0:
        raise BatchMalformed("batch holds no message")
    base = &data[0]
    while at < end:
        after = _read_element(base, at, end, &fields)
        items.append(_new_tuple(BatchItem, (
            fields.flag,
            view[at + 20:at + 20 + fields.body_size],
            PyBytes_FromStringAndSize(<const char*>fields.properties, fields.properties_size),
        )))
        at = after
    return items


# --- where the next byte goes ---------------------------------------------------------------------


layout = LAYOUT


def check_layout(int built_over, str name):
    """Stop the import of a module that was built over another _record.pxd. Raises RuntimeError: an
    ImportError would silently pick the slow form."""
    if built_over != LAYOUT:
        raise RuntimeError(
            f"{name} and tandemmq.storage._record were not built together: build all compiled modules anew "
            "(pip install -e .)"
        )


cdef class LogTail:
    """See tandemmq.storage.tail.LogTail."""

    def __cinit__(self):
        self.staging = NULL
        self.room = _STAGING_BYTES
        self.descriptor = -1
        self.failure = ""

    def __dealloc__(self):
        PyMem_RawFree(self.staging)

    @property
    def end(self):
        """Log offset of the next byte, behind what is staged."""
        return self.segment_start + self.position

    def open(self, int descriptor, long long segment_start, Py_ssize_t position, Py_ssize_t limit):
        """See tandemmq.storage.tail.LogTail.open."""
        if descriptor < 0:
            raise ValueError(f"descriptor {descriptor}")
        if not 0 <= position <= limit:
            raise ValueError(f"position {position} in a segment of {limit} bytes")
        self.close()
        if self.staging == NULL:
            self.staging = <unsigned char*>PyMem_RawMalloc(<size_t>self.room)
            if self.staging == NULL:
                raise MemoryError
        self.segment_start = segment_start
        self.committed = self.position = position
        self.limit = limit
        self.descriptor = descriptor

    def close(self):
        """See tandemmq.storage.tail.LogTail.close."""
        try:
            if not self.failure:
                self.commit_staged()
        finally:
            self.descriptor = -1
            self.position = self.limit = self.committed

    def commit(self):
        """See tandemmq.storage.tail.LogTail.commit."""
        self.commit_staged()

    cdef int commit_staged(self) except -1:
        if self.failure:
            raise FlushFailed(self.failure)
        if self.committed < self.position:
            self._write_out(self.staging, self.position - self.committed)
        return 0

    cdef int _write_out(self, const unsigned char* data, Py_ssize_t size) except -1:
        """Write bytes at `committed`, all of them, and move it.

        Keeps the GIL: letting go of it costs more than the copy when another thread wants it.
        """
        cdef Py_ssize_t at = self.committed, done = 0
        cdef ssize_t count
        cdef int code
        while done < size:
            count = pwrite(self.descriptor, data + done, <size_t>(size - done), at + done)
            if count > 0:
                done += count
                continue
            code = errno if count < 0 else EIO
            if code == EINTR:
                continue
            self.failure = f"cannot write the log at {self.segment_start + at}: {os.strerror(code)}"
            raise FlushFailed(self.failure) from OSError(code, os.strerror(code))
        self.committed = at + size
        self.committed_ms = self.last_store_ms
        return 0

    cdef unsigned char* _stage(self, Py_ssize_t size) except NULL:
        """Where in the staging buffer the next `size` bytes go; makes room for them."""
        cdef Py_ssize_t at = self.position - self.committed
        cdef unsigned char* larger
        if at + size <= self.room:
            return self.staging + at
        self.commit_staged()
        if size > self.room:
            larger = <unsigned char*>PyMem_RawRealloc(self.staging, <size_t>size)
            if larger == NULL:
                raise MemoryError
            self.staging = larger
            self.room = size
        return self.staging

    cdef long long append_fields(self, DraftFields* draft) except -2:
        cdef Py_ssize_t size = stored_size(draft), position = self.position
        cdef unsigned char* at
        if self.descriptor < 0 or size + BLANK_BYTES > self.limit - position:
            return -1
        at = self._stage(size)
        if draft.store_ms < self.last_store_ms:
            draft.store_ms = self.last_store_ms
        write_record(at, draft, size, self.segment_start + position)
        self.last_store_ms = draft.store_ms
        self.position = position + size
        self.records += 1
        self.record_bytes += size
        return self.segment_start + position

    def append(self, draft, queue_offset, store_ms):
        """See tandemmq.storage.tail.LogTail.append."""
        cdef DraftFields fields
        cdef Py_buffer body
        cdef bytes topic = _topic_bytes(draft), born = draft.born_host, store = draft.store_host
        cdef bytes properties = draft.properties
        _set_shape(&fields, topic, born, store)
        fields.properties = _bytes_at(properties)
        fields.properties_size = PyBytes_GET_SIZE(properties)
        PyObject_GetBuffer(draft.body, &body, PyBUF_SIMPLE)
        try:
            fields.body = <const unsigned char*>body.buf
            fields.body_size = body.len
            if _checked_size(&fields) + BLANK_BYTES > self.limit - self.position:
                return -1
            store_ms = max(store_ms, self.last_store_ms)  # as an object: it may not fit a long
            _set_numbers(&fields, draft, draft.flag, queue_offset, store_ms, draft.prepared_offset)
            return self.append_fields(&fields)
        finally:
            PyBuffer_Release(&body)

    def append_batch(self, envelope, first_queue_offset, store_ms):
        """See tandemmq.storage.tail.LogTail.append_batch."""
        cdef const unsigned char[::1] data = memoryview(envelope.body)
        cdef Py_ssize_t end = data.shape[0], at = 0, total = 0, size, position = self.position
        cdef const unsigned char* base
        cdef DraftFields fields
        cdef unsigned char* staged
        cdef long long queue_offset
        cdef bytes topic, born, store, shared
        cdef list offsets = []
        if end == 0:
            raise BatchMalformed("batch holds no message")
        base = &data[0]
        while at < end:
            at = _read_element(base, at, end, &fields)
        topic = _topic_bytes(envelope)
        born, store, shared = envelope.born_host, envelope.store_host, envelope.properties
        _set_shape(&fields, topic, born, store)
        fields.properties_more = _bytes_at(shared)
        fields.properties_more_size = PyBytes_GET_SIZE(shared)
        at = 0
        while at < end:
            at = _read_element(base, at, end, &fields)
            total += _checked_size(&fields)
        if self.descriptor < 0 or total + BLANK_BYTES > self.limit - position:
            return None
        _set_numbers(&fields, envelope, 0, first_queue_offset, max(store_ms, self.last_store_ms), 0)
        queue_offset = fields.queue_offset
        staged = self._stage(total)
        at = 0
        while at < end:
            at = _read_element(base, at, end, &fields)
            fields.queue_offset = queue_offset
            queue_offset += 1
            size = stored_size(&fields)
            write_record(staged, &fields, size, self.segment_start + position)
            offsets.append(self.segment_start + position)
            position += size
            staged += size
        self.last_store_ms = fields.store_ms
        self.position = position  # only now: a failure above leaves no half batch behind
        self.records += len(offsets)
        self.record_bytes += total
        return offsets

    def append_raw(self, const unsigned char[::1] data not None):
        """See tandemmq.storage.tail.LogTail.append_raw."""
        cdef Py_ssize_t size = data.shape[0], position = self.position
        cdef unsigned char* at
        if self.descriptor < 0 or size > self.limit - position:
            return -1
        if size > self.room or (size >= _DIRECT_BYTES and self.committed == position):
            self.commit_staged()
            self._write_out(&data[0], size)
            self.position = self.committed
        elif size:
            at = self._stage(size)
            memcpy(at, &data[0], <size_t>size)
            self.position = position + size
        return self.segment_start + position

    def write_blank(self):
        """See tandemmq.storage.tail.LogTail.write_blank."""
        cdef Py_ssize_t room = self.limit - self.position
        cdef unsigned char* at
        if self.descriptor >= 0:
            if room >= BLANK_BYTES:
                at = self._stage(BLANK_BYTES)
                put32(at, <unsigned int>room)
                put32(at + 4, <unsigned int>MAGIC_BLANK)
                self.position += BLANK_BYTES
            self.commit_staged()
        self.committed = self.position = self.limit


cdef class QueueTail:
    """See tandemmq.storage.tail.QueueTail."""

    def __init__(self, bytes topic not None, int queue_id, long long next_offset=0):
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = next_offset
