# cython: language_level=3
# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""kernel.py and ledger.py compiled: same names, same results.

tests/replication/audit/test_kernel_twins.py holds them against each other.
Cost of one record of 1 KiB: a pair that is equal is one header read and one memcmp; in the ledger one
CRC pass over the body, two dictionary look-ups and one hash of the tag; a key of the index one hash more.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy

from tandemmq.storage._record cimport (
    HEAD_RECORD, LAYOUT, HeadFields, crc32, find_property, has_index_entries, has_queue_entry, java_hash_c, read_head,
)

from tandemmq.storage import _record as _compiled_record

from tandemmq.replication.audit.kernel import Island, Line
from tandemmq.replication.audit.ledger import MARK_NAMES, MARKS_MAX, SPECIAL_TOPICS, Mark, Special

_compiled_record.check_layout(LAYOUT, __name__)

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static inline int32_t audit_get32(const unsigned char *at) {
        uint32_t v; memcpy(&v, at, 4); return (int32_t)__builtin_bswap32(v);
    }
    static inline int64_t audit_get64(const unsigned char *at) {
        uint64_t v; memcpy(&v, at, 8); return (int64_t)__builtin_bswap64(v);
    }

    /* place of a four-byte magic at or behind p, NULL when there is none: memchr finds the rare byte */
    static const unsigned char *audit_find(
        const unsigned char *p, const unsigned char *end, const unsigned char *word, size_t size
    ) {
        while ((size_t)(end - p) >= size) {
            p = memchr(p, word[0], end - p - size + 1);
            if (!p) return 0;
            if (memcmp(p, word, size) == 0) return p;
            p++;
        }
        return 0;
    }

    /* bytes that differ, and those of them that are zero on each side */
    static void audit_count(
        const unsigned char *a, const unsigned char *b, size_t n, long long *counts
    ) {
        long long differing = 0, zeroed_a = 0, zeroed_b = 0;
        for (size_t i = 0; i < n; i++) {
            int d = a[i] != b[i];
            differing += d;
            zeroed_a += d & (a[i] == 0);
            zeroed_b += d & (b[i] == 0);
        }
        counts[0] += differing; counts[1] += zeroed_a; counts[2] += zeroed_b;
    }
    static int64_t audit_first_difference(const unsigned char *a, const unsigned char *b, size_t n) {
        size_t i = 0;
        while (i < n && a[i] == b[i]) i++;
        return i < n ? (int64_t)i : -1;
    }
    static int64_t audit_last_difference(const unsigned char *a, const unsigned char *b, size_t n) {
        while (n && a[n - 1] == b[n - 1]) n--;
        return (int64_t)n;
    }
    """
    int get32 "audit_get32" (const unsigned char* at) noexcept nogil
    long long get64 "audit_get64" (const unsigned char* at) noexcept nogil
    const unsigned char* audit_find(
        const unsigned char* at, const unsigned char* end, const unsigned char* word, size_t size
    ) noexcept nogil
    void audit_count(
        const unsigned char* a, const unsigned char* b, size_t n, long long* counts
    ) noexcept nogil
    long long audit_first_difference(
        const unsigned char* a, const unsigned char* b, size_t n
    ) noexcept nogil
    long long audit_last_difference(
        const unsigned char* a, const unsigned char* b, size_t n
    ) noexcept nogil

cdef enum:
    K_NOTHING = 0
    K_RECORD = 1
    K_BLANK = 2
    K_MORE = 3
    K_MISPLACED = 4
    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    MAGIC_BLANK = -875286124
    BLANK_BYTES = 8
    RECORD_BYTES_MIN = 91
    TAIL_BYTES_MAX = 65538
    F_LENGTHS = 1 << 13
    F_BODY = 1 << 14
    F_TOPIC = 1 << 15
    F_PROPERTIES = 1 << 16
    M_CRC_WRONG = 0
    M_GAP = 1
    M_REPEAT = 2
    M_RESTART = 3
    M_ENTRY_MISSING = 4
    M_ENTRY_OTHER = 5
    M_ENTRY_TAGS = 6
    M_KEY_MISSING = 7
    M_KEY_OTHER = 8
    M_KEY_DANGLING = 9
    HASHES_MAX = 64
    RECENT_SLOTS = 1024

cdef const unsigned char* RECORD_WORD = b"\xda\xa3\x20"
cdef const unsigned char* BLANK_WORD = b"\xcb\xd4\x31\x94"
cdef long long KEPT_MAX = MARKS_MAX
cdef long long EXTENSION_ADDRESS_MAX = -4611686018427387904
cdef set SPECIALS = set(SPECIAL_TOPICS)
cdef bytes DELAY = b"SCHEDULE_TOPIC_XXXX"


# --- what stands at a place -----------------------------------------------------------------------


cdef bint _size_credible(const unsigned char* at, Py_ssize_t size, Py_ssize_t room) noexcept nogil:
    cdef int sys_flag
    cdef Py_ssize_t head, rest, body
    if room < 40:
        return True
    sys_flag = get32(at + 36)
    head = 72 + (20 if sys_flag & 0x10 else 8) + (20 if sys_flag & 0x20 else 8)
    if room < head:
        return True
    body = get32(at + head - 4)
    rest = size - head - (body if body > 0 else 0)
    return 3 <= rest <= TAIL_BYTES_MAX


cdef int _kind(
    const unsigned char* view, Py_ssize_t length, long long offset, long long base,
    long long limit, Py_ssize_t* size, HeadFields* head,
) noexcept nogil:
    """kernel.kind_at; `head` is filled for K_RECORD."""
    cdef Py_ssize_t at = <Py_ssize_t>(offset - base), room = length - at
    cdef const unsigned char* here = view + at
    cdef int magic
    cdef long long left = limit - offset
    size[0] = 0
    if room < BLANK_BYTES:
        return K_MORE if offset + BLANK_BYTES <= limit and room >= 0 else K_NOTHING
    size[0] = get32(here)
    magic = get32(here + 4)
    if magic == MAGIC_BLANK:
        if size[0] == left:
            return K_BLANK
        size[0] = 0
        return K_NOTHING
    if (
        (magic != MAGIC_V1 and magic != MAGIC_V2)
        or size[0] < RECORD_BYTES_MIN or size[0] > left - BLANK_BYTES
        or (room >= 36 and get64(here + 28) != offset)
    ):
        size[0] = 0
        return K_NOTHING
    if size[0] <= room:
        if read_head(view, at, length, length, False, head) == HEAD_RECORD:
            return K_RECORD
    elif _size_credible(here, size[0], room):
        return K_MORE
    size[0] = 0
    return K_NOTHING


cdef bint _body_crc_right(const unsigned char* view, const HeadFields* head) noexcept nogil:
    return head.body_size == 0 or (
        <int>(crc32(view + head.body_start, head.body_size) & 0x7FFFFFFFu) == head.body_crc
    )


cdef bint _can_follow(
    const unsigned char* view, Py_ssize_t length, long long offset, long long base, long long limit,
) noexcept nogil:
    cdef Py_ssize_t size
    cdef HeadFields head
    if offset - base + BLANK_BYTES > length:
        return True
    if _kind(view, length, offset, base, limit, &size, &head) != K_NOTHING:
        return True
    return get32(view + (offset - base)) == 0


cdef long long _find(
    const unsigned char* view, Py_ssize_t length, long long start, long long base, long long limit,
    int* kind,
) noexcept nogil:
    """kernel.find_record."""
    cdef const unsigned char* end = view + length
    cdef const unsigned char* at = view + (start - base) + 4
    cdef const unsigned char* magic = NULL
    cdef const unsigned char* blank = NULL
    cdef long long offset
    cdef Py_ssize_t size
    cdef HeadFields head
    kind[0] = K_NOTHING
    if at < end:
        magic = audit_find(at, end, RECORD_WORD, 3)
        blank = audit_find(at, end, BLANK_WORD, 4)
    while magic != NULL or blank != NULL:
        if magic == NULL or (blank != NULL and blank < magic):
            offset = base + (blank - view) - 4
            blank = audit_find(blank + 1, end, BLANK_WORD, 4)
        else:
            offset = base + (magic - view) - 4
            magic = audit_find(magic + 1, end, RECORD_WORD, 3)
        kind[0] = _kind(view, length, offset, base, limit, &size, &head)
        if kind[0] == K_RECORD and not _can_follow(view, length, offset + size, base, limit):
            continue
        if kind[0] != K_NOTHING:
            return offset
    kind[0] = K_NOTHING
    return -1


cdef class _View:
    """A buffer held as long as it is read."""
    cdef Py_buffer buffer
    cdef const unsigned char* data
    cdef Py_ssize_t length

    def __cinit__(self, view):
        PyObject_GetBuffer(view, &self.buffer, PyBUF_SIMPLE)
        self.data = <const unsigned char*>self.buffer.buf
        self.length = self.buffer.len

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


def kind_at(view, long long offset, long long base, long long limit):
    cdef _View held = _View(view)
    cdef Py_ssize_t size
    cdef HeadFields head
    cdef int kind = _kind(held.data, held.length, offset, base, limit, &size, &head)
    return kind, size


def find_record(view, long long start, long long base, long long limit):
    cdef _View held = _View(view)
    cdef int kind
    cdef long long offset
    with nogil:
        offset = _find(held.data, held.length, start, base, limit, &kind)
    return offset, kind


def skip(view, long long start, long long base, long long limit):
    cdef _View held = _View(view)
    cdef Py_ssize_t size
    cdef HeadFields head
    cdef int kind
    cdef long long offset = start
    with nogil:
        while True:
            kind = _kind(held.data, held.length, offset, base, limit, &size, &head)
            if kind != K_RECORD:
                break
            offset += size
    return offset, kind


def rows(
    view, long long start, long long end, long long base, long long limit, bint crc_checked=False
):
    cdef _View held = _View(view)
    cdef const unsigned char* at
    cdef HeadFields head
    cdef Py_ssize_t size, born, store
    cdef long long offset = start
    cdef long long computed = -1
    cdef list found = []
    while offset < end:
        if _kind(held.data, held.length, offset, base, limit, &size, &head) != K_RECORD:
            break
        at = held.data + (offset - base)
        born = 20 if head.sys_flag & 0x10 else 8
        store = 20 if head.sys_flag & 0x20 else 8
        if crc_checked:
            computed = 0
            if head.body_size:
                computed = crc32(held.data + head.body_start, head.body_size) & 0x7FFFFFFFu
        found.append(Line(
            offset, size, 1 if head.magic == MAGIC_V1 else 2, head.body_crc, computed,
            head.queue_id, head.flag, head.queue_offset, head.sys_flag, get64(at + 40),
            head.store_ms, get32(at + 56 + born + store), get64(at + 60 + born + store),
            PyBytes_FromStringAndSize(<const char*>at + 48, born),
            PyBytes_FromStringAndSize(<const char*>at + 56 + born, store),
            PyBytes_FromStringAndSize(<const char*>held.data + head.topic_start, head.topic_size),
            PyBytes_FromStringAndSize(
                <const char*>held.data + head.properties_start, head.properties_size
            ),
            head.body_start, head.body_start + head.body_size,
        ))
        offset += size
    return iter(found)


# --- two replicas ---------------------------------------------------------------------------------


cdef struct Side:
    long long offset
    long long records
    long long junk
    long long breaks
    long long misplaced
    long long bad_crc
    unsigned long long content
    bint in_junk


cdef void _forget(Side* side) noexcept nogil:
    side.records = side.junk = side.breaks = side.misplaced = side.bad_crc = 0
    side.content = 0
    side.in_junk = False


cdef void _add_junk(Side* side, long long size) noexcept nogil:
    if not side.in_junk:
        side.breaks += 1
    side.in_junk = True
    side.junk += size
    side.offset += size


cdef void _add_content(Side* side, unsigned long long content) noexcept nogil:
    side.in_junk = False
    side.content += content


cdef void _take(Side* side, const unsigned char* view, const HeadFields* head, int kind) noexcept nogil:
    cdef const unsigned char* at = view + head.position
    side.records += 1
    if kind == K_MISPLACED:
        side.misplaced += 1
    elif not _body_crc_right(view, head):
        side.bad_crc += 1
    _add_content(
        side,
        <unsigned long long>crc32(at + 36, head.size - 36) << 32 | crc32(at, 28),
    )


cdef int _as_misplaced(
    const unsigned char* view, Py_ssize_t length, long long offset, long long base,
    long long limit, int kind, Py_ssize_t* size, HeadFields* head,
) noexcept nogil:
    cdef Py_ssize_t at = <Py_ssize_t>(offset - base), end
    if kind != K_NOTHING:
        return kind
    end = length
    if limit - base - BLANK_BYTES < end:
        end = <Py_ssize_t>(limit - base - BLANK_BYTES)
    if end - at < RECORD_BYTES_MIN:
        return kind
    if read_head(view, at, end, end, False, head) != HEAD_RECORD or not _body_crc_right(view, head):
        return kind
    size[0] = head.size
    return K_MISPLACED


cdef int _different_fields(
    const unsigned char* a, const unsigned char* b, const HeadFields* left, const HeadFields* right,
) noexcept nogil:
    cdef Py_ssize_t born, store, at = left.position, edge
    cdef Py_ssize_t[15] edges
    cdef int bit, fields = 0
    if (
        (left.sys_flag ^ right.sys_flag) & 0x30
        or left.body_start != right.body_start or left.body_size != right.body_size
        or left.topic_start != right.topic_start or left.topic_size != right.topic_size
        or left.properties_start != right.properties_start
        or left.properties_size != right.properties_size
    ):
        return F_LENGTHS
    born = 20 if left.sys_flag & 0x10 else 8
    store = 20 if left.sys_flag & 0x20 else 8
    edges[0] = 4
    edges[1] = 8
    edges[2] = 12
    edges[3] = 16
    edges[4] = 20
    edges[5] = 28
    edges[6] = 36
    edges[7] = 40
    edges[8] = 48
    edges[9] = 48 + born
    edges[10] = 56 + born
    edges[11] = 56 + born + store
    edges[12] = 60 + born + store
    edges[13] = 68 + born + store
    edges[14] = 72 + born + store
    for bit in range(14):
        if memcmp(a + at + edges[bit], b + at + edges[bit], edges[bit + 1] - edges[bit]):
            fields |= 1 << bit
    edge = left.body_start + left.body_size
    if memcmp(a + edge, b + edge, left.topic_start - edge):
        fields |= F_LENGTHS
    edge = left.topic_start + left.topic_size
    if memcmp(a + edge, b + edge, left.properties_start - edge):
        fields |= F_LENGTHS
    if memcmp(a + left.body_start, b + left.body_start, left.body_size):
        fields |= F_BODY
    if memcmp(a + left.topic_start, b + left.topic_start, left.topic_size):
        fields |= F_TOPIC
    if memcmp(a + left.properties_start, b + left.properties_start, left.properties_size):
        fields |= F_PROPERTIES
    return fields


cdef class PairDiff:
    cdef Side a, b
    cdef long long open
    cdef bint paired
    cdef int fields
    cdef long long counted, diff_start, diff_end
    cdef long long[3] differing         # differing, zeroed in a, zeroed in b
    cdef readonly long long equal_records, equal_bytes, padding

    def __init__(self, long long start):
        self.a.offset = self.b.offset = self.counted = start
        _forget(&self.a)
        _forget(&self.b)
        self.equal_records = self.equal_bytes = self.padding = 0
        self._reset()

    cdef void _reset(self) noexcept nogil:
        self.open = -1
        self.paired = True
        self.fields = 0
        self.differing[0] = self.differing[1] = self.differing[2] = 0
        self.diff_start = self.diff_end = -1

    @property
    def offset_a(self):
        return self.a.offset

    @property
    def offset_b(self):
        return self.b.offset

    @property
    def offset(self):
        return min(self.a.offset, self.b.offset)

    @property
    def in_island(self):
        return self.open >= 0

    def step(self, a, b, long long base, long long limit, long long stop, bint final):
        cdef _View left = _View(a)
        cdef _View right = _View(b)
        cdef list found = []
        cdef long long end = base + left.length, closed
        cdef bint more = True
        if left.length != right.length or base > self.offset:
            raise ValueError(
                f"views of {left.length} and {right.length} bytes from {base}, at {self.offset}"
            )
        while more:
            with nogil:
                more = self._run(left.data, right.data, left.length, base, limit, stop, final, &closed)
            if closed >= 0:
                found.append(self._close(closed, False))
        self._count(left.data, right.data, base, end)
        return found

    def finish(self):
        if self.open < 0:
            return []
        return [self._close(max(self.a.offset, self.b.offset), True)]

    cdef bint _run(
        self, const unsigned char* a, const unsigned char* b, Py_ssize_t length, long long base,
        long long limit, long long stop, bint final, long long* closed,
    ) noexcept nogil:
        """Go on until an island ends (its end in `closed`; call again) or the views do (False)."""
        cdef long long end = base + length, offset
        cdef Py_ssize_t size_a, size_b, at
        cdef int kind_a, kind_b
        cdef bint went_a, went_b, same
        cdef HeadFields left, right
        closed[0] = -1
        while True:
            if self.a.offset < self.b.offset:
                if self.a.offset >= end or not self._advance(
                    &self.a, a, length, base, limit, final
                ):
                    return False
                continue
            if self.b.offset < self.a.offset:
                if self.b.offset >= end or not self._advance(
                    &self.b, b, length, base, limit, final
                ):
                    return False
                continue
            offset = self.a.offset
            if offset >= end or (self.open < 0 and offset >= stop):
                return False
            at = <Py_ssize_t>(offset - base)
            kind_a = _kind(a, length, offset, base, limit, &size_a, &left)
            # a header's lengths say what a record is; equal bytes make it the same on both sides
            same = (
                kind_a == K_RECORD and memcmp(a + at, b + at, size_a) == 0
            )
            if same:
                if self.open >= 0:
                    self._count(a, b, base, end)
                    closed[0] = offset
                self.equal_records += 1
                self.equal_bytes += size_a
                self.a.offset = self.b.offset = self.counted = offset + size_a
                if closed[0] >= 0:
                    return True
                continue
            kind_b = _kind(b, length, offset, base, limit, &size_b, &right)
            if (kind_a == K_MORE or kind_b == K_MORE) and not final:
                return False
            if kind_a == K_BLANK and kind_b == K_BLANK:
                if self.open >= 0:
                    self._count(a, b, base, end)
                    closed[0] = offset
                self.equal_bytes += BLANK_BYTES
                self.padding += size_a - BLANK_BYTES
                self.a.offset = self.b.offset = self.counted = offset + size_a
                if closed[0] >= 0:
                    return True
                continue
            if self.open < 0:
                self.open = self.counted = offset
            kind_a = _as_misplaced(a, length, offset, base, limit, kind_a, &size_a, &left)
            kind_b = _as_misplaced(b, length, offset, base, limit, kind_b, &size_b, &right)
            if (
                (kind_a == K_RECORD or kind_a == K_MISPLACED)
                and (kind_b == K_RECORD or kind_b == K_MISPLACED) and size_a == size_b
            ):
                self.fields |= _different_fields(a, b, &left, &right)
                _take(&self.a, a, &left, kind_a)
                _take(&self.b, b, &right, kind_b)
                self.a.offset = self.b.offset = offset + size_a
                continue
            self.paired = False
            went_a = self._advance(&self.a, a, length, base, limit, final)
            went_b = self._advance(&self.b, b, length, base, limit, final)
            if not went_a and not went_b:
                return False

    cdef bint _advance(
        self, Side* side, const unsigned char* view, Py_ssize_t length, long long base,
        long long limit, bint final,
    ) noexcept nogil:
        cdef long long offset = side.offset, end = base + length, found
        cdef Py_ssize_t size
        cdef HeadFields head
        cdef int kind, next_kind
        self.paired = False
        kind = _kind(view, length, offset, base, limit, &size, &head)
        kind = _as_misplaced(view, length, offset, base, limit, kind, &size, &head)
        if kind == K_MORE and not final:
            return False
        if kind == K_RECORD or kind == K_MISPLACED:
            _take(side, view, &head, kind)
            side.offset = offset + size
            return True
        if kind == K_BLANK:
            _add_content(side, <unsigned long long>size)
            side.offset = limit
            return True
        found = _find(view, length, offset + 1, base, limit, &next_kind)
        if found < 0 and kind == K_MORE and size and side.records:
            side.records += 1
            _add_content(side, <unsigned long long>size)
            side.offset = end
            return True
        if found < 0:
            if final or end >= limit:
                found = end
            else:
                found = end - RECORD_BYTES_MIN
                if found < offset:
                    found = offset
        if found == offset:
            return False
        _add_junk(side, found - offset)
        return True

    cdef void _count(
        self, const unsigned char* a, const unsigned char* b, long long base, long long end,
    ) noexcept nogil:
        cdef long long start = self.counted, first
        cdef size_t size
        if self.a.offset < end:
            end = self.a.offset
        if self.b.offset < end:
            end = self.b.offset
        if self.open < 0 or end <= start:
            return
        self.counted = end
        size = <size_t>(end - start)
        a += start - base
        b += start - base
        first = audit_first_difference(a, b, size)
        if first < 0:
            return
        if self.diff_start < 0:
            self.diff_start = start + first
        self.diff_end = start + audit_last_difference(a, b, size)
        audit_count(a, b, size, self.differing)

    cdef _close(self, long long end, bint at_end):
        island = Island(
            self.open, end, self.a.records, self.b.records, self.a.junk, self.b.junk,
            self.a.breaks, self.b.breaks, self.a.misplaced, self.b.misplaced,
            self.a.bad_crc, self.b.bad_crc, bool(self.paired), self.fields,
            self.differing[0], self.differing[1], self.differing[2],
            self.diff_start, self.diff_end, self.a.content, self.b.content, bool(at_end),
        )
        _forget(&self.a)
        _forget(&self.b)
        self._reset()
        return island


# --- the ledger -----------------------------------------------------------------------------------


cdef class QueueSpan:
    cdef public long long first, first_physical, last, last_physical, count
    cdef bytes topic
    cdef int queue_id
    cdef bint special
    cdef list windows                   # (first queue offset, entries) by shelf


cdef inline Py_ssize_t _slot_of(const unsigned char* topic, const HeadFields* head) noexcept:
    """Any spread will do: a wrong queue in the slot costs one dictionary look-up."""
    cdef unsigned int value = <unsigned int>head.queue_id * 31 + <unsigned int>head.topic_size
    if head.topic_size >= 4:
        value = value * 31 + <unsigned int>get32(topic + head.topic_size - 4)
    return (value ^ value >> 11) & (RECENT_SLOTS - 1)


cdef class _IndexCursor:
    cdef const long long[::1] physical
    cdef const int[::1] hashes
    cdef Py_ssize_t at, length
    cdef long long first, last


cdef class Ledger:
    cdef readonly dict spans
    cdef public list marks, special
    cdef readonly list counts
    cdef readonly long long records, bytes, last_store_ms
    cdef readonly list unindexed, first_unindexed
    cdef Py_ssize_t shelves
    cdef object window, tags_code
    cdef list indexes
    cdef bint indexed
    cdef list recent                    # spans by _slot_of(): spares a look-up for most records
    cdef unsigned char* text            # for "topic#key"
    cdef Py_ssize_t text_size

    def __cinit__(self):
        self.text_size = 1 << 17        # topic and properties are at most 32 KiB each
        self.text = <unsigned char*>malloc(self.text_size)
        if self.text == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.text)

    def __init__(self, Py_ssize_t shelves, window, tags_code):
        self.spans = {}
        self.marks = []
        self.special = []
        self.counts = [[0] * (shelves + 1) for _ in MARK_NAMES]
        self.records = self.bytes = self.last_store_ms = 0
        self.unindexed = [0] * shelves
        self.first_unindexed = [-1] * shelves
        self.shelves = shelves
        self.window = window
        self.tags_code = tags_code
        self.indexes = [None] * shelves
        self.indexed = False
        self.recent = [None] * RECENT_SLOTS

    def set_index(self, Py_ssize_t shelf, physical, hashes, long long first, long long last):
        cdef _IndexCursor cursor = _IndexCursor()
        cursor.length = len(physical)
        if cursor.length:
            cursor.physical = physical
            cursor.hashes = hashes
        cursor.first = first
        cursor.last = last
        self.indexes[shelf] = cursor
        self.indexed = True

    def skip_index(self, Py_ssize_t shelf, long long offset):
        cdef _IndexCursor cursor = self.indexes[shelf]
        if cursor is not None:
            while cursor.at < cursor.length and cursor.physical[cursor.at] < offset:
                cursor.at += 1

    def walk(
        self, view, long long start, long long end, long long base, long long limit, int mask
    ):
        cdef _View held = _View(view)
        cdef long long offset = start
        cdef Py_ssize_t size
        cdef HeadFields head
        cdef int kind
        while offset < end:
            kind = _kind(held.data, held.length, offset, base, limit, &size, &head)
            if kind == K_BLANK:
                return limit, kind
            if kind != K_RECORD:
                return offset, kind
            self._take_record(held.data, &head, offset, mask)
            offset += size
        return offset, K_RECORD

    cdef int _take_record(
        self, const unsigned char* view, const HeadFields* head, long long offset, int mask
    ) except -1:
        cdef bytes topic, properties
        cdef const unsigned char* tags
        cdef Py_ssize_t tags_size = 0, shelf
        cdef long long code
        cdef QueueSpan span
        self.records += 1
        self.bytes += head.size
        self.last_store_ms = head.store_ms
        span = self._known(view, head)
        topic = span.topic if span is not None else PyBytes_FromStringAndSize(
            <const char*>view + head.topic_start, head.topic_size
        )
        if not _body_crc_right(view, head):
            self._mark(M_CRC_WRONG, -1, topic, head.queue_id, head.queue_offset, offset, 0, 0)
        if self.indexed and has_index_entries(head.sys_flag):
            self._check_keys(view, head, topic, offset, mask)
        if not has_queue_entry(head.sys_flag):
            return 0
        if span is None:
            span = self._begin(view, head, topic, offset)
        if span.count:
            self._follow(span, head.queue_offset, offset)
        else:
            span.count = 1
        if span.special:
            properties = PyBytes_FromStringAndSize(
                <const char*>view + head.properties_start, head.properties_size
            )
            code = self.tags_code(topic, properties, head.store_ms)
            self.special.append(Special(
                topic, head.queue_id, head.queue_offset, offset, head.store_ms, code, properties,
                b"" if topic == DELAY else PyBytes_FromStringAndSize(
                    <const char*>view + head.body_start, head.body_size
                ),
            ))
        else:
            tags = find_property(
                view + head.properties_start, head.properties_size, b"TAGS", 4, &tags_size
            )
            code = java_hash_c(tags, tags_size) if tags != NULL else 0
        for shelf in range(self.shelves):
            if mask >> shelf & 1:
                self._check_entry(span, shelf, topic, head, offset, code)
        return 0

    cdef QueueSpan _known(self, const unsigned char* view, const HeadFields* head):
        """The record's queue, if it is among the recent ones."""
        cdef QueueSpan span = self.recent[_slot_of(view + head.topic_start, head)]
        if (
            span is not None and span.queue_id == head.queue_id
            and PyBytes_GET_SIZE(span.topic) == head.topic_size
            and memcmp(
                PyBytes_AS_STRING(span.topic), view + head.topic_start, head.topic_size
            ) == 0
        ):
            return span
        return None

    cdef QueueSpan _begin(
        self, const unsigned char* view, const HeadFields* head, bytes topic, long long offset
    ):
        """The record's queue, a new one (count 0) if it was not seen yet."""
        cdef tuple key = (topic, head.queue_id)
        cdef QueueSpan span = self.spans.get(key)
        if span is None:
            span = QueueSpan()
            span.first = span.last = head.queue_offset
            span.first_physical = span.last_physical = offset
            span.topic = topic
            span.queue_id = head.queue_id
            span.special = topic in SPECIALS
            span.windows = [(0, b"")] * self.shelves
            self.spans[key] = span
        self.recent[_slot_of(view + head.topic_start, head)] = span
        return span

    cdef int _follow(self, QueueSpan span, long long queue_offset, long long offset) except -1:
        cdef long long expected = span.last + 1
        cdef int code
        if queue_offset != expected:
            code = M_GAP if queue_offset > expected else M_RESTART if queue_offset == 0 else M_REPEAT
            self._mark(
                code, -1, span.topic, span.queue_id, queue_offset, offset, expected,
                span.last_physical,
            )
        span.count += 1
        span.last = queue_offset
        span.last_physical = offset
        return 0

    cdef int _check_entry(
        self, QueueSpan span, Py_ssize_t shelf, bytes topic, const HeadFields* head,
        long long offset, long long code,
    ) except -1:
        cdef tuple window = span.windows[shelf]
        cdef long long first = window[0], at
        cdef bytes entries = window[1]
        cdef const unsigned char* entry
        cdef long long found_offset, found_code
        cdef int found_size
        at = (head.queue_offset - first) * 20
        if at < 0 or at + 20 > PyBytes_GET_SIZE(entries):
            window = self.window(shelf, topic, head.queue_id, head.queue_offset)
            span.windows[shelf] = window
            first = window[0]
            entries = window[1]
            at = (head.queue_offset - first) * 20
            if at < 0 or at + 20 > PyBytes_GET_SIZE(entries):
                self._mark(
                    M_ENTRY_MISSING, shelf, topic, head.queue_id, head.queue_offset, offset, 0, 0
                )
                return 0
        entry = <const unsigned char*>PyBytes_AS_STRING(entries) + at
        found_offset = get64(entry)
        found_size = get32(entry + 8)
        found_code = get64(entry + 12)
        if found_offset == offset and found_size == head.size:
            if found_code != code and (found_code > EXTENSION_ADDRESS_MAX or topic == DELAY):
                self._mark(
                    M_ENTRY_TAGS, shelf, topic, head.queue_id, head.queue_offset, offset,
                    found_code, code,
                )
        elif found_size == 0:
            self._mark(
                M_ENTRY_MISSING, shelf, topic, head.queue_id, head.queue_offset, offset, 0, 0
            )
        else:
            self._mark(
                M_ENTRY_OTHER, shelf, topic, head.queue_id, head.queue_offset, offset,
                found_offset, found_size,
            )
        return 0

    cdef Py_ssize_t _hashes(
        self, const unsigned char* view, const HeadFields* head, bytes topic, int* hashes
    ) noexcept:
        """The record's key hashes; -1 when there are more than HASHES_MAX."""
        cdef const unsigned char* properties = view + head.properties_start
        cdef const unsigned char* value
        cdef const unsigned char* end
        cdef const unsigned char* stop
        cdef Py_ssize_t size = 0, count = 0, topic_size = PyBytes_GET_SIZE(topic)
        memcpy(self.text, PyBytes_AS_STRING(topic), topic_size)
        self.text[topic_size] = 35      # '#'
        value = find_property(properties, head.properties_size, b"UNIQ_KEY", 8, &size)
        if value != NULL and size > 0:
            hashes[0] = self._hash(value, size, topic_size)
            count = 1
        value = find_property(properties, head.properties_size, b"KEYS", 4, &size)
        if value == NULL:
            return count
        end = value + size
        while value < end:
            stop = <const unsigned char*>memchr(value, 32, end - value)
            if stop == NULL:
                stop = end
            if stop > value:
                if count == HASHES_MAX:
                    return -1
                hashes[count] = self._hash(value, stop - value, topic_size)
                count += 1
            value = stop + 1
        return count

    cdef int _hash(self, const unsigned char* key, Py_ssize_t size, Py_ssize_t topic_size) noexcept:
        cdef long long value
        memcpy(self.text + topic_size + 1, key, size)
        value = java_hash_c(self.text, topic_size + 1 + size)
        if value < 0:
            value = -value
        return <int>value if value <= 0x7FFFFFFF else 0

    cdef int _check_keys(
        self, const unsigned char* view, const HeadFields* head, bytes topic, long long offset,
        int mask,
    ) except -1:
        cdef int[HASHES_MAX] hashes
        cdef Py_ssize_t count = self._hashes(view, head, topic, hashes), shelf, start, i, j
        cdef _IndexCursor cursor
        for shelf in range(self.shelves):
            cursor = self.indexes[shelf]
            if cursor is None or not mask >> shelf & 1:
                continue
            while cursor.at < cursor.length and cursor.physical[cursor.at] < offset:
                self._mark(
                    M_KEY_DANGLING, shelf, b"", -1, -1, cursor.physical[cursor.at],
                    cursor.hashes[cursor.at], 0,
                )
                cursor.at += 1
            start = cursor.at
            while cursor.at < cursor.length and cursor.physical[cursor.at] == offset:
                cursor.at += 1
            if count < 0:
                continue                # more keys than any client writes: left unchecked
            if offset > cursor.last:
                if count:
                    self.unindexed[shelf] += 1
                    if self.first_unindexed[shelf] < 0:
                        self.first_unindexed[shelf] = offset
                continue
            if offset >= cursor.first:
                for i in range(count):
                    for j in range(start, cursor.at):
                        if cursor.hashes[j] == hashes[i]:
                            break
                    else:
                        self._mark(
                            M_KEY_MISSING, shelf, topic, head.queue_id, head.queue_offset, offset,
                            hashes[i], 0,
                        )
            for j in range(start, cursor.at):
                for i in range(count):
                    if cursor.hashes[j] == hashes[i]:
                        break
                else:
                    self._mark(
                        M_KEY_OTHER, shelf, topic, head.queue_id, head.queue_offset, offset,
                        cursor.hashes[j], 0,
                    )
        return 0

    cdef int _mark(
        self, int code, Py_ssize_t shelf, bytes topic, int queue_id, long long queue_offset,
        long long offset, long long first, long long second,
    ) except -1:
        cdef list counts = self.counts[code]
        cdef long long count = counts[shelf + 1] + 1
        counts[shelf + 1] = count
        if count <= KEPT_MAX:
            self.marks.append(
                Mark(code, shelf, topic, queue_id, queue_offset, offset, first, second)
            )
        return 0
