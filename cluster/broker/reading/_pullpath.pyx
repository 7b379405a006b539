# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""pullpath.py compiled: the same frames taken, the same answers, for pulls by tag that find messages in memory.

Every other frame is shown to the readable form, alone. Held to it by tests/cluster/broker/test_pullpath.py.

Cost per pull: one pass over the header, seven calls of Python functions (tables, the queue, what a group pulled), one
look at each entry and record, one copy. What holds for all pulls of a chunk is asked once, and counted once.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.unicode cimport PyUnicode_DecodeUTF8

from tandemmq.cluster.broker._request cimport (
    HAS_CODE, HAS_EXT, HAS_LANGUAGE, HAS_REMARK, NO_MATTER, NOT_OURS, Request, read_json,
)
from tandemmq.cluster.remoting._scan cimport (
    Bytes, Text, get32, get64, is_word, put32, put_bytes, put_decimal, read_number,
)

from time import perf_counter_ns

from tandemmq.cluster.broker.reading.foundanswers import json_pieces
from tandemmq.cluster.broker.reading.pullpath import HEADER_BYTES_MAX
from tandemmq.cluster.broker.reading.pullpath import PullPath as Readable
from tandemmq.cluster.remoting.codes import LANGUAGE_CODES
from tandemmq.storage import GetResult, GetStatus

cdef extern from "Python.h":
    Py_buffer* PyMemoryView_GET_BUFFER(object)

cdef enum:
    PULL_MESSAGE = 11
    LITE_PULL_MESSAGE = 361
    COMMIT_OFFSET = 1
    SUBSCRIPTION = 4
    PERM_READ = 4
    ENTRY_BYTES = 20
    PULL_BYTES_MAX = 134217728

    # the ext fields of a pull: RocketMQ's PullMessageRequestHeader
    GROUP = 0
    TOPIC = 1
    QUEUE = 2
    OFFSET = 3
    COUNT = 4
    SYS_FLAG = 5
    COMMIT = 6
    SUSPEND = 7
    EXPRESSION = 8
    VERSION = 9
    KIND = 10
    MAX_BYTES = 11
    REQUIRED = 0x3F             # GROUP to SYS_FLAG
    NUMBERS = 6
    HEAD_ROOM = 512

cdef struct Fixed:
    Bytes at
    Py_ssize_t size


# --- reading -------------------------------------------------------------------------------------------------------

cdef inline int field_of(int code, const Text* key) noexcept nogil:
    """A FieldOf: of pulls, nothing that is not known."""
    if is_word(key, "consumerGroup", 13): return GROUP
    if is_word(key, "topic", 5): return TOPIC
    if is_word(key, "queueId", 7): return QUEUE
    if is_word(key, "queueOffset", 11): return OFFSET
    if is_word(key, "maxMsgNums", 10): return COUNT
    if is_word(key, "sysFlag", 7): return SYS_FLAG
    if is_word(key, "commitOffset", 12): return COMMIT
    if is_word(key, "suspendTimeoutMillis", 20): return SUSPEND
    if is_word(key, "subscription", 12): return EXPRESSION
    if is_word(key, "subVersion", 10): return VERSION
    if is_word(key, "expressionType", 14): return KIND
    if is_word(key, "maxMsgBytes", 11): return MAX_BYTES
    if is_word(key, "bname", 5) or is_word(key, "lo", 2) or is_word(key, "ns", 2): return NO_MATTER
    if is_word(key, "nsd", 3) or is_word(key, "oway", 4): return NO_MATTER
    if is_word(key, "requestSource", 13) or is_word(key, "proxyFrowardClientId", 20): return NO_MATTER
    return NOT_OURS


cdef inline bint read_pull(Bytes at, Bytes end, Request* pull) noexcept nogil:
    return read_json(at, end, pull, field_of, NO_MATTER) and pull.members & (
        HAS_CODE | HAS_EXT | HAS_LANGUAGE | HAS_REMARK
    ) == HAS_CODE | HAS_EXT | HAS_LANGUAGE


cdef inline bint long_in(const Request* pull, int field, long long low, long long high, long long* found) noexcept nogil:
    """The number in a field, 0 where it is absent."""
    if not pull.seen & (1u << field):
        found[0] = 0
        return True
    return read_number(pull.fields[field].at, pull.fields[field].size, low, high, found)


cdef inline bint int_in(const Request* pull, int field, long long* found) noexcept nogil:
    return long_in(pull, field, -2147483648, 2147483647, found)


cdef inline str text_of(const Text* text):
    return PyUnicode_DecodeUTF8(<const char*>text.at, text.size, NULL)


cdef class PullPath:
    """As pullpath.PullPath."""

    cdef object _handler
    cdef object _readable
    cdef object _group_of       # functions of the handler's parts
    cdef object _topic_of
    cdef object _queue_of
    cdef object _find
    cdef object _resident_end
    cdef object _records
    cdef object _gather
    cdef object _commit_pull
    cdef object _commit
    cdef dict _languages
    cdef Py_ssize_t _output_high
    cdef Py_ssize_t _header_max
    cdef list _kept             # owns the bytes that _pieces point into
    cdef Fixed _pieces[NUMBERS + 2]
    # of one chunk
    cdef object _terms
    cdef object _segment
    cdef long long _segment_start
    cdef long long _segment_end
    cdef list _parts
    cdef Py_ssize_t _parts_bytes
    cdef str _group
    cdef str _topic
    cdef list _queue_ids        # of the pulls that are not counted yet, all of _group and _topic
    cdef long long _messages
    cdef long long _bytes
    cdef long long _taken
    cdef object _began_ns

    def __init__(self, handler, Py_ssize_t output_high_bytes):
        cdef int i
        cdef bytes piece
        parts = handler.parts()
        self._handler = handler
        self._readable = Readable(handler, output_high_bytes)
        self._group_of = parts.groups.get
        self._topic_of = parts.topics.get
        self._queue_of = parts.reading.queue
        self._find = parts.reading.segment
        self._resident_end = parts.reading.resident_end
        self._records = parts.reading.records
        self._gather = parts.reading.gather
        self._commit_pull = parts.offsets.commit_pull
        self._commit = parts.offsets.commit
        self._languages = dict(LANGUAGE_CODES)
        self._output_high = output_high_bytes
        self._header_max = HEADER_BYTES_MAX
        self._kept = json_pieces()
        for i in range(NUMBERS + 2):
            piece = self._kept[i]
            self._pieces[i].at = <Bytes><const char*>piece
            self._pieces[i].size = len(piece)
        self._parts = []
        self._queue_ids = []

    def process(self, view, Py_ssize_t start, Py_ssize_t end, connection):
        """As pullpath.PullPath.process."""
        return self._process(view, start, end, connection)

    cdef Py_ssize_t _process(self, view, Py_ssize_t start, Py_ssize_t end, connection) except -1:
        cdef Py_buffer buffer
        cdef Bytes at
        cdef Request pull
        cdef Py_ssize_t length, header, stop, next_start
        cdef Py_ssize_t queued
        cdef int version = 0
        language = found = None
        if end - start < 20:
            return start
        PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
        try:
            if end > buffer.len or start < 0:
                raise ValueError(f"[{start}, {end}) of {buffer.len} bytes")
            queued = -1
            self._terms = None
            while end - start >= 20:
                at = <Bytes>buffer.buf + start
                if not (
                    at[16] == 49 and at[17] == 49 and at[18] == 44 and at[19] == 34
                    or at[16] == 51 and at[17] == 54 and at[18] == 49 and at[19] == 44
                ):
                    break
                length = <Py_ssize_t>get32(at)
                header = <Py_ssize_t>get32(at + 4)
                stop = start + 4 + length
                if length != 4 + header or stop > end or header > self._header_max:
                    break
                if self._terms is None:
                    self._terms = self._handler.terms()
                    if self._terms is None:
                        return self._readable.process(view, start, end, connection)
                    queued = connection.queued_bytes
                    if queued > self._output_high:
                        break  # also at first: in_turns() asks again at once
                    self._began_ns = perf_counter_ns()
                if (
                    read_pull(at + 8, at + 8 + header, &pull)
                    and (found := self._languages.get(text_of(&pull.language))) is not None
                    and self._answered(&pull, connection)
                ):
                    self._taken += 1
                    language, version = found, pull.version
                    start = stop
                    if queued + self._parts_bytes > self._output_high:
                        break
                    continue
                self._settle(connection, language, version)
                next_start = self._readable.process(view, start, stop, connection)
                if next_start == start:
                    break
                start = next_start
                self._terms = None  # it may have changed what holds
                if connection.queued_bytes > self._output_high or connection.closed:
                    break
        finally:  # also when it failed half-way: what was answered goes to whom it is for
            PyBuffer_Release(&buffer)
            if self._taken or self._segment is not None:
                self._segment = None
                self._settle(connection, language, version)
        return start

    cdef bint _answered(self, const Request* pull, connection) except -1:
        """Answer one pull; False when it is for the readable form, and then nothing happened."""
        try:
            return self._answer(pull, connection)
        except OSError:  # reading is what comes first
            return False

    cdef bint _answer(self, const Request* pull, connection) except -1:
        """As _answered. Raises OSError before anything happened."""
        cdef long long queue_id, offset, count, sys_flag, commit, unused, version
        cdef long long log_end, hot_from, next_offset, max_offset, min_offset, physical, limit, behind
        cdef long long entries_max, last
        cdef Py_ssize_t at, came, stop
        cdef bint full
        cdef str group_name, topic_name
        if pull.flag or pull.seen & REQUIRED != REQUIRED:
            return False
        if not (
            int_in(pull, QUEUE, &queue_id) and long_in(pull, OFFSET, 0, 1LL << 62, &offset)
            and int_in(pull, COUNT, &count) and int_in(pull, SYS_FLAG, &sys_flag)
            and long_in(pull, COMMIT, -(1LL << 62), 1LL << 62, &commit)
            and long_in(pull, SUSPEND, -(1LL << 62), 1LL << 62, &unused)
            and long_in(pull, VERSION, -(1LL << 62), 1LL << 62, &version)
            and int_in(pull, MAX_BYTES, &unused)
        ):
            return False
        terms = self._terms
        if pull.code != PULL_MESSAGE and not (pull.code == LITE_PULL_MESSAGE and terms.lite):
            return False
        group_name, topic_name = text_of(&pull.fields[GROUP]), text_of(&pull.fields[TOPIC])
        group = self._group_of(group_name)
        topic = self._topic_of(topic_name)
        if group is None or topic is None or not group.consume_enable or not topic.perm & PERM_READ:
            return False
        if queue_id < 0 or queue_id >= topic.read_queue_nums:
            return False
        if not sys_flag & SUBSCRIPTION:
            selector = self._handler.subscribed(group_name, topic_name, version, group)
            if selector is None:
                return False
            tag_codes = selector.tag_codes
        elif (
            pull.seen & (1u << EXPRESSION) and is_word(&pull.fields[EXPRESSION], "*", 1)
            and pull.seen & (1u << KIND) and is_word(&pull.fields[KIND], "TAG", 3)
        ):
            tag_codes = None
        else:
            return False
        queue = self._queue_of(topic_name, queue_id)
        if queue is None:
            return False
        max_offset = queue.end.next_offset
        min_offset = queue.min_offset
        if offset < min_offset or offset >= max_offset:
            return False
        entries_max = max(<long long>terms.filter_bytes_max, count * ENTRY_BYTES)
        entries_max = (entries_max + ENTRY_BYTES - 1) // ENTRY_BYTES
        entries, came, stop = queue.window(offset, entries_max)
        if came == stop:
            return False
        physical = <long long>get64(<Bytes>PyMemoryView_GET_BUFFER(entries).buf + came)
        if self._segment is None or not self._segment_start <= physical < self._segment_end:
            segment = self._find(physical)
            if segment is None:
                return False
            self._segment = segment
            self._segment_start = segment.start
            self._segment_end = segment.start + segment.size
        log_end, hot_from = terms.log_end, terms.hot_from
        if physical >= hot_from:
            limit = min(self._segment_end, log_end)
        else:
            limit = min(<long long>self._resident_end(self._segment, physical), log_end)
        if limit <= physical:
            return False
        records = self._records()
        at, last, full = self._gather(
            entries, came, stop, self._segment.view, self._segment_start, physical, limit,
            min(<long long>terms.bytes_max, <long long>PULL_BYTES_MAX), min(<long long>terms.count_max, count), tag_codes, records,
        )
        if not full or not records:
            return False
        next_offset = offset + (at - came) // ENTRY_BYTES
        behind = log_end - last
        if behind <= <long long>terms.near_bytes:
            suggested = group.broker_id if terms.slave_reads else 0
        else:
            found = GetResult(GetStatus.FOUND, next_offset, last_physical=last, behind=behind)
            suggested = self._handler.next_broker(group, (connection.id, topic_name, queue_id), found)
        self._commit_pull(group_name, topic_name, queue_id, next_offset)
        if sys_flag & COMMIT_OFFSET:
            self._commit(group_name, topic_name, queue_id, commit)
        if self._queue_ids and (self._group != group_name or self._topic != topic_name):
            self._count((perf_counter_ns() - self._began_ns) // 1_000_000 // (self._taken + 1))
        self._group, self._topic = group_name, topic_name
        self._queue_ids.append(queue_id)
        self._messages += len(records)
        self._bytes += records.bytes
        frame = records.after(
            self._head(
                records.bytes, pull.opaque, suggested, group.group_sys_flag, next_offset, max_offset, min_offset,
                topic.topic_sys_flag,
            )
        )
        self._parts.append(frame)
        self._parts_bytes += len(<bytes>frame)
        return True

    cdef bytes _head(
        self, Py_ssize_t body, int opaque, long long suggested, long long group_flag, long long next_offset,
        long long max_offset, long long min_offset, long long topic_flag,
    ):
        """foundanswers.found_head() of a JSON header."""
        cdef unsigned char room[HEAD_ROOM]
        cdef unsigned char* at = room + 8
        cdef unsigned int header
        at = put_bytes(at, self._pieces[0].at, self._pieces[0].size)
        at = put_decimal(at, suggested)
        at = put_bytes(at, self._pieces[1].at, self._pieces[1].size)
        at = put_decimal(at, group_flag)
        at = put_bytes(at, self._pieces[2].at, self._pieces[2].size)
        at = put_decimal(at, next_offset)
        at = put_bytes(at, self._pieces[3].at, self._pieces[3].size)
        at = put_decimal(at, max_offset)
        at = put_bytes(at, self._pieces[4].at, self._pieces[4].size)
        at = put_decimal(at, min_offset)
        at = put_bytes(at, self._pieces[5].at, self._pieces[5].size)
        at = put_decimal(at, topic_flag)
        at = put_bytes(at, self._pieces[6].at, self._pieces[6].size)
        at = put_decimal(at, opaque)
        at = put_bytes(at, self._pieces[7].at, self._pieces[7].size)
        header = <unsigned int>(at - room - 8)
        put32(room, header + 4 + <unsigned int>body)
        put32(room + 4, header)
        return PyBytes_FromStringAndSize(<char*>room, at - room)

    cdef int _settle(self, connection, language, int version) except -1:
        """Let the answers go, and count them."""
        cdef list parts
        if not self._taken:
            return 0
        parts, self._parts = self._parts, []
        taken, self._taken, self._parts_bytes = self._taken, 0, 0
        took_us = (perf_counter_ns() - self._began_ns) // 1_000
        self._count(took_us // taken // 1_000)
        self._began_ns = perf_counter_ns()
        self._handler.took(took_us // taken, taken)
        connection.heard(language, version, binary=False, count=taken)
        connection.writelines(parts)
        return 0

    cdef int _count(self, took_ms) except -1:
        """took_ms: of each of the pulls, as their chunk took it together."""
        self._handler.pulled(self._group, self._topic, self._messages, self._bytes, self._queue_ids, took_ms)
        self._queue_ids = []
        self._messages = self._bytes = 0
        return 0


def in_turns(first, then):
    """As pullpath.in_turns."""
    cdef PullPath pulls = None
    if isinstance(getattr(first, "__self__", None), PullPath):
        pulls = first.__self__

    def process(view, Py_ssize_t start, Py_ssize_t end, connection):
        cdef Py_ssize_t begin
        while True:
            begin = start
            if pulls is not None:
                start = pulls._process(view, start, end, connection)
            else:
                start = first(view, start, end, connection)
            if start < end:
                start = then(view, start, end, connection)
            if start == begin or start >= end or connection.closed:
                return start

    return process
