# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""sendpath.py compiled: the same frames taken, the same bytes in the log, the same answers.

Held to it by tests/cluster/broker/test_sendpath_twins.py. Differences allowed by its rule "in doubt a frame is left":
this one also takes code 10 and JSON in any member order; sendpath.py takes some odd spellings of numbers.

Cost per 1 KiB message with a JSON header of 400 bytes: one pass over the header, one CRC pass and one copy of the
body, 280 bytes of answer; no Python object is made. About 0.6 us.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memchr, memcmp, memcpy

from tandemmq.cluster.broker._request cimport (
    EXT_FIELDS_TAKEN, EXT_NAME_MAX, HAS_CODE, HAS_EXT, NO_MATTER, NOT_OURS, Request, keep_field, read_json,
)
from tandemmq.cluster.remoting._scan cimport (
    ESCAPED, NOT_ASCII, Bytes, Text, get16, get32, is_word, put32, put_bytes, put_decimal, read_number, tandem_plain_bytes,
)
from tandemmq.storage._record cimport LAYOUT, DraftFields, LogTail, QueueTail

from tandemmq.storage import _record as _compiled_record
from tandemmq.cluster.broker.sending.admission import AdmittedTopic
from tandemmq.cluster.broker.sending.sendpath import SYS_FLAGS_TAKEN, answer_pieces
from tandemmq.cluster.broker.sending.messages import broker_properties
from tandemmq.cluster.remoting.frame import FrameLimits

_compiled_record.check_layout(LAYOUT, __name__)

cdef enum:
    SEND_MESSAGE = 10
    SEND_MESSAGE_V2 = 310
    ONEWAY = 2

    PROPERTIES_MAX = 32767
    TOPIC_MAX = 127
    UNIQUE_ID_MAX = 128
    MESSAGES_PER_ADMISSION = 1024
    ANSWER_PARTS = 6
    ANSWER_ROOM = 256           # of an answer beyond its fixed parts: four numbers, two ids

    # the ext fields of a send by their letter: RocketMQ's SendMessageRequestHeaderV2
    A_GROUP = 0
    B_TOPIC = 1
    C_TEMPLATE = 2
    D_QUEUES = 3
    E_QUEUE = 4
    F_SYS_FLAG = 5
    G_BORN = 6
    H_FLAG = 7
    I_PROPERTIES = 8
    J_RECONSUMED = 9
    K_UNIT = 10
    L_TRIES = 11
    M_BATCH = 12
    N_BROKER = 13
    REQUIRED = 0xFF             # a to h

cdef struct Fixed:
    # bytes of ours that outlive every call
    Bytes at
    Py_ssize_t size


# --- reading -------------------------------------------------------------------------------------------------------

cdef inline int letter_of(int code, const Text* key) noexcept nogil:
    """A FieldOf: of sends, by letter or by name. Others may know more fields than these."""
    if code == SEND_MESSAGE_V2:
        if key.size == 1 and 97 <= key.at[0] <= 110:
            return key.at[0] - 97
        return NO_MATTER
    if code != SEND_MESSAGE: return NOT_OURS
    if is_word(key, "producerGroup", 13): return A_GROUP
    if is_word(key, "topic", 5): return B_TOPIC
    if is_word(key, "defaultTopic", 12): return C_TEMPLATE
    if is_word(key, "defaultTopicQueueNums", 21): return D_QUEUES
    if is_word(key, "queueId", 7): return E_QUEUE
    if is_word(key, "sysFlag", 7): return F_SYS_FLAG
    if is_word(key, "bornTimestamp", 13): return G_BORN
    if is_word(key, "flag", 4): return H_FLAG
    if is_word(key, "properties", 10): return I_PROPERTIES
    if is_word(key, "reconsumeTimes", 14): return J_RECONSUMED
    if is_word(key, "unitMode", 8): return K_UNIT
    if is_word(key, "maxReconsumeTimes", 17): return L_TRIES
    if is_word(key, "batch", 5): return M_BATCH
    if is_word(key, "bname", 5): return N_BROKER
    return NO_MATTER


cdef inline bint read_json_send(Bytes at, Bytes end, Request* send) noexcept nogil:
    return read_json(at, end, send, letter_of, I_PROPERTIES) and send.members & (HAS_CODE | HAS_EXT) == HAS_CODE | HAS_EXT


cdef bint read_binary_send(Bytes at, Bytes end, Request* send) noexcept nogil:
    """Whether [at, end) is the binary header of a send: no remark, no field twice, none empty."""
    cdef Text key, value
    cdef int count = 0
    if end - at < 21:
        return False
    send.seen = 0
    send.binary = True
    send.code = <int>get16(at)
    send.opaque = <int>get32(at + 5)
    send.flag = <int>get32(at + 9)
    if send.code != SEND_MESSAGE_V2 and send.code != SEND_MESSAGE:
        return False
    if get32(at + 13) != 0 or <Py_ssize_t>get32(at + 17) != end - at - 21:
        return False
    at += 21
    key.marks = value.marks = 0
    while at < end:
        if end - at < 6:
            return False
        key.size = <Py_ssize_t>get16(at)
        key.at = at + 2
        if key.size > EXT_NAME_MAX or key.size + 6 > end - at:
            return False
        at = key.at + key.size
        value.size = <Py_ssize_t>get32(at)
        value.at = at + 4
        if value.size < 1 or value.size > end - value.at:
            return False
        at = value.at + value.size
        count += 1
        if count > EXT_FIELDS_TAKEN or not keep_field(send, letter_of(send.code, &key), &value):
            return False
    return True


cdef inline int hex_digit(unsigned char byte) noexcept nogil:
    if 48 <= byte <= 57:
        return byte - 48
    if 97 <= (byte | 32) <= 102:
        return (byte | 32) - 87
    return -1


cdef Py_ssize_t unescape(const Text* text, unsigned char* out) noexcept nogil:
    """Write a JSON string's content as UTF-8; its size, or -1 at an escape that is odd. `out` has room for text.size."""
    cdef Bytes at = text.at
    cdef Bytes end = at + text.size
    cdef unsigned char* start = out
    cdef unsigned char byte
    cdef int unit, digit, i
    cdef size_t plain
    while at < end:
        plain = tandem_plain_bytes(at, <size_t>(end - at))
        if plain:
            memcpy(out, at, plain)
            at += plain
            out += plain
            if at == end:
                break
        byte = at[0]
        at += 1
        if byte != 92:
            out[0] = byte
            out += 1
            continue
        if at >= end:
            return -1
        byte = at[0]
        at += 1
        if byte == 117:
            if end - at < 4:
                return -1
            unit = 0
            for i in range(4):
                digit = hex_digit(at[i])
                if digit < 0:
                    return -1
                unit = unit << 4 | digit
            at += 4
            if unit < 0x80:
                out[0] = <unsigned char>unit
                out += 1
            elif 0xD800 <= unit <= 0xDFFF:  # half of a character
                return -1
            elif unit < 0x800:
                out[0] = <unsigned char>(0xC0 | unit >> 6)
                out[1] = <unsigned char>(0x80 | unit & 0x3F)
                out += 2
            else:
                out[0] = <unsigned char>(0xE0 | unit >> 12)
                out[1] = <unsigned char>(0x80 | unit >> 6 & 0x3F)
                out[2] = <unsigned char>(0x80 | unit & 0x3F)
                out += 3
        elif byte == 34 or byte == 92 or byte == 47:
            out[0] = byte
            out += 1
        elif byte == 110:
            out[0] = 10
            out += 1
        elif byte == 116:
            out[0] = 9
            out += 1
        elif byte == 114:
            out[0] = 13
            out += 1
        elif byte == 98:
            out[0] = 8
            out += 1
        elif byte == 102:
            out[0] = 12
            out += 1
        else:
            return -1
    return out - start


cdef bint ordinary(Bytes at, Py_ssize_t size, bint held, Text* unique_id) noexcept nogil:
    """Whether encoded properties are those of a plain message with one sound UNIQ_KEY, which is returned."""
    cdef Bytes end = at + size
    cdef Bytes entry_end
    cdef Bytes value
    cdef Text name
    cdef Py_ssize_t i
    unique_id.size = 0
    while at < end:
        entry_end = <Bytes>memchr(at, 2, <size_t>(end - at))
        if entry_end == NULL:
            entry_end = end
        value = <Bytes>memchr(at, 1, <size_t>(entry_end - at))
        if value != NULL:
            name.at = at
            name.size = value - at
            value += 1
            if is_word(&name, "UNIQ_KEY", 8):
                if unique_id.size:
                    return False
                unique_id.at = value
                unique_id.size = entry_end - value
                if not 0 < unique_id.size <= UNIQUE_ID_MAX:
                    return False
                for i in range(unique_id.size):
                    if not (48 <= value[i] <= 57 or 97 <= (value[i] | 32) <= 122 and value[i] < 128):
                        return False
            elif name.size >= 5:
                if (
                    is_word(&name, "DELAY", 5)
                    or is_word(&name, "TRAN_MSG", 8)
                    or is_word(&name, "POP_CK", 6)
                    or is_word(&name, "__CRC32#", 8)
                    or memcmp(name.at, b"TIMER_", 6) == 0 and name.size > 6
                    or memcmp(name.at, b"INNER_", 6) == 0 and name.size > 6
                ):
                    return False
            elif held and is_word(&name, "WAIT", 4):
                if entry_end - value != 4 or memcmp(value, b"true", 4) != 0:
                    return False
        at = entry_end + 1
    return unique_id.size > 0


# --- writing -------------------------------------------------------------------------------------------------------

cdef unsigned char* put_hex16(unsigned char* at, unsigned long long value) noexcept nogil:
    cdef int i
    for i in range(16):
        at[i] = b"0123456789ABCDEF"[value >> (60 - 4 * i) & 15]
    return at + 16


cdef class _Topic:
    """An admitted topic and the tails of its queues, looked up as they are needed."""

    cdef bytes name
    cdef int queues
    cdef int write_queues
    cdef int sys_flag_bits
    cdef list tails

    def __init__(self, bytes name, admitted):
        self.name = name
        self.queues = min(admitted.queues, 65536)
        self.write_queues = admitted.write_queues
        self.sys_flag_bits = admitted.sys_flag_bits
        self.tails = [None] * self.queues


cdef class SendPath:
    """As sendpath.SendPath."""

    cdef object _store
    cdef object _flags
    cdef object _admission
    cdef object _acks
    cdef object _config
    cdef object _said           # the safety that answers speak of, where they wait
    cdef LogTail _tail
    cdef bytes _store_host
    cdef bytes _added
    cdef list _kept             # owns the bytes that _json, _binary and _host point into
    cdef Fixed _json[ANSWER_PARTS]
    cdef Fixed _binary[ANSWER_PARTS]
    cdef Fixed _host
    cdef Py_ssize_t _answer_max
    cdef dict _topics
    cdef _Topic _topic          # the one of the message before: most chunks are of one topic
    cdef object _generation
    cdef long long _asked_at    # `messages` when the admission was last asked; negative: ask now
    cdef unsigned long long _random
    cdef Py_ssize_t _header_max
    cdef Py_ssize_t _frame_max
    cdef Py_ssize_t _body_max
    cdef int _sys_flags_taken
    cdef bint _held
    cdef unsigned char* _scratch
    cdef Py_ssize_t _scratch_room
    cdef unsigned char* _out
    cdef Py_ssize_t _out_size
    cdef Py_ssize_t _out_room
    cdef readonly long long messages
    cdef object _release
    cdef list _staged           # its list: (connection, answers, said) of chunks not released yet

    def __cinit__(self):
        self._scratch = self._out = NULL

    def __init__(self, config, store, admission, release, *, bytes store_host, rng, limits=None):
        self._release = release
        self._staged = release.staged
        limits = limits or FrameLimits()
        self._store = store
        self._flags = store.flags
        self._admission = admission
        self._asked_at = -1
        self._acks = release.acks
        self._tail = store.log_tail
        self._store_host = store_host
        self._added = broker_properties(config.region, config.cluster, config.trace_on)
        self._header_max = limits.header_bytes_max
        self._frame_max = limits.frame_bytes_max
        self._body_max = config.storage.body_bytes_max
        self._sys_flags_taken = SYS_FLAGS_TAKEN
        self._held = release.holds
        self._random = rng.getrandbits(64) | 1
        self._topics = {}
        self._generation = None
        self._config = config
        self._expect(self._acks.expected)
        self._scratch_room = self._header_max
        self._scratch = <unsigned char*>PyMem_Malloc(self._scratch_room)
        self._out_room = 1 << 16
        self._out = <unsigned char*>PyMem_Malloc(self._out_room)
        if self._scratch == NULL or self._out == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._scratch)
        PyMem_Free(self._out)

    cdef int _expect(self, said) except -1:
        """Say this of a message's safety in answers from now on."""
        cdef int i
        self._said = said
        said = said if self._held else None
        host = self._store_host.hex().upper().encode()
        json, binary = answer_pieces(self._config, False, said), answer_pieces(self._config, True, said)
        self._kept = [*json, *binary, host]
        self._answer_max = sum(map(len, self._kept)) + ANSWER_ROOM + UNIQUE_ID_MAX
        for i in range(ANSWER_PARTS):
            fix(json[i], &self._json[i])
            fix(binary[i], &self._binary[i])
        fix(host, &self._host)
        return 0

    def process(self, view, Py_ssize_t start, Py_ssize_t end, connection):
        """As sendpath.SendPath.process."""
        cdef Py_buffer buffer
        cdef Py_ssize_t at = start
        cdef long long taken = self.messages
        cdef bytes born_host
        if end - start < 8 or not self._is_open(start, connection):
            return start
        generation = self._admission.generation()
        if self._generation != generation:
            self._generation = generation
            self._topics.clear()
            self._topic = None
        if self._held and self._said is not self._acks.expected:
            self._expect(self._acks.expected)
        born_host = connection.peer_host
        now_ms = self._store.clock.now_ms()
        self._out_size = 0
        PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
        try:
            if end > buffer.len or start < 0:
                raise ValueError(f"[{start}, {end}) of {buffer.len} bytes")
            at = self._walk(<Bytes>buffer.buf, start, end, born_host, now_ms)
        finally:  # also when it failed half-way: what is staged must become part of the log
            PyBuffer_Release(&buffer)
            if self.messages > taken:
                self._staged.append(
                    (connection, PyBytes_FromStringAndSize(<char*>self._out, self._out_size), self._said)
                )
                if len(self._staged) == 1:
                    self._release.due()
        return at

    cdef bint _is_open(self, Py_ssize_t start, connection) except -1:
        """Admission.open, but asked in full only where its answer can have changed.

        Bytes at the front of a chunk have not waited; the store says at once when it cannot be written; its
        backlog grows by what we append; and where answers do not wait, a master is one for good. Where they
        wait, its standing is asked for again in each turn of the loop.
        """
        if (
            start == 0 and (not self._held or self._staged) and 0 <= self._asked_at
            and self.messages - self._asked_at < MESSAGES_PER_ADMISSION and self._flags.writable
        ):
            return True
        if self._admission.open(connection):
            self._asked_at = self.messages
            return True
        self._asked_at = -1
        return False

    cdef Py_ssize_t _walk(
        self, Bytes view, Py_ssize_t at, Py_ssize_t end, bytes born_host, long long now_ms
    ) except -1:
        """Store sends from `at` on; where the first frame starts that is none, or not whole."""
        cdef Request send
        cdef DraftFields draft
        cdef Py_ssize_t length, header, frame_end, body_start
        cdef bint is_send
        draft.born_host = <Bytes>PyBytes_AS_STRING(born_host)
        draft.born_host_size = PyBytes_GET_SIZE(born_host)
        draft.store_host = <Bytes>PyBytes_AS_STRING(self._store_host)
        draft.store_host_size = PyBytes_GET_SIZE(self._store_host)
        if draft.born_host_size != 8 and draft.born_host_size != 20:
            return at
        draft.properties_more = <Bytes>PyBytes_AS_STRING(self._added)
        draft.properties_more_size = PyBytes_GET_SIZE(self._added)
        draft.prepared_offset = 0
        while end - at >= 8:
            length = <Py_ssize_t>get32(view + at)
            header = <Py_ssize_t>(get32(view + at + 4) & 0xFFFFFF)
            frame_end = at + 4 + length
            body_start = at + 8 + header
            if (
                frame_end > end or body_start >= frame_end
                or length > self._frame_max - 4 or header > self._header_max
            ):
                break
            if view[at + 4] == 1:
                is_send = read_binary_send(view + at + 8, view + body_start, &send)
            elif view[at + 4] == 0:
                is_send = read_json_send(view + at + 8, view + body_start, &send)
            else:
                break
            if not is_send:
                break
            draft.body = view + body_start
            draft.body_size = frame_end - body_start
            draft.store_ms = now_ms
            if not self._store_one(&send, &draft):
                break
            at = frame_end
        return at

    cdef bint _store_one(self, Request* send, DraftFields* draft) except -1:
        """Store one message and answer it; False when it is not for us, and then nothing was written."""
        cdef long long queue_id, sys_flag, born_ms, flag, number, offset
        cdef long long reconsumed = 0
        cdef Text unique_id
        cdef _Topic topic
        cdef QueueTail queue
        cdef Text* field = send.fields
        if send.flag & ~ONEWAY or send.seen & REQUIRED != REQUIRED or send.seen & 1u << L_TRIES:
            return False
        if send.seen & 1u << M_BATCH and not is_word(&field[M_BATCH], "false", 5):
            return False
        if send.seen & 1u << K_UNIT and not (
            is_word(&field[K_UNIT], "false", 5) or is_word(&field[K_UNIT], "true", 4)
        ):
            return False
        if send.seen & 1u << J_RECONSUMED and not int32_in(&field[J_RECONSUMED], &reconsumed):
            return False
        if not (
            int32_in(&field[D_QUEUES], &number)
            and int32_in(&field[E_QUEUE], &queue_id)
            and int32_in(&field[F_SYS_FLAG], &sys_flag)
            and int32_in(&field[H_FLAG], &flag)
            and read_number(field[G_BORN].at, field[G_BORN].size, -(1LL << 62), 1LL << 62, &born_ms)
        ):
            return False
        if sys_flag & ~self._sys_flags_taken or draft.body_size > self._body_max:
            return False
        if not self._read_properties(send, draft, &unique_id):
            return False
        topic = self._find_topic(&field[B_TOPIC])
        if topic is None or queue_id >= topic.queues or topic.write_queues <= 0:
            return False
        if queue_id < 0:
            queue_id = self._next_random() % <unsigned int>topic.write_queues
        queue = self._find_queue(topic, <int>queue_id)
        draft.topic = <Bytes>PyBytes_AS_STRING(topic.name)
        draft.topic_size = PyBytes_GET_SIZE(topic.name)
        draft.queue_id = <int>queue_id
        draft.flag = <int>flag
        draft.sys_flag = <int>sys_flag | topic.sys_flag_bits
        draft.born_ms = born_ms
        draft.reconsume_times = <int>reconsumed
        draft.queue_offset = queue.next_offset
        offset = self._tail.append_fields(draft)
        if offset < 0:  # the long way rolls the log
            return False
        queue.next_offset += 1
        self.messages += 1
        if not send.flag:
            self._answer(send, queue_id, &unique_id, offset, queue.next_offset - 1)
        return True

    cdef bint _read_properties(self, Request* send, DraftFields* draft, Text* unique_id) except -1:
        """Point the draft at a send's properties, escapes undone."""
        cdef Text* found = &send.fields[I_PROPERTIES]
        cdef Py_ssize_t size
        if not send.seen & 1u << I_PROPERTIES or found.size > self._scratch_room:
            return False
        draft.properties = found.at
        draft.properties_size = found.size
        if found.marks & ESCAPED:
            size = unescape(found, self._scratch)
            if size < 0:
                return False
            draft.properties = self._scratch
            draft.properties_size = size
        if draft.properties_size + 1 + draft.properties_more_size > PROPERTIES_MAX:
            return False
        if not ordinary(draft.properties, draft.properties_size, self._held, unique_id):
            return False
        if send.binary or found.marks & NOT_ASCII:
            return is_utf8(draft.properties, draft.properties_size)
        return True

    cdef _Topic _find_topic(self, const Text* text):
        cdef _Topic topic = self._topic
        cdef bytes name
        if topic is not None and PyBytes_GET_SIZE(topic.name) == text.size and (
            memcmp(PyBytes_AS_STRING(topic.name), text.at, <size_t>text.size) == 0
        ):
            return topic
        if text.size > TOPIC_MAX:
            return None
        name = PyBytes_FromStringAndSize(<const char*>text.at, text.size)
        found = self._topics.get(name, self)
        if found is self:
            admitted = self._admission.topic(name.decode("utf-8", "replace"))
            found = None if admitted is None else _Topic(name, admitted)
            # What a client may name freely is not remembered.
            if found is not None:
                self._topics[name] = found
        if found is not None:
            self._topic = found
        return found

    cdef QueueTail _find_queue(self, _Topic topic, int queue_id):
        cdef object queue = <object>PyList_GET_ITEM(topic.tails, queue_id)
        if queue is None:
            queue = topic.tails[queue_id] = self._store.queue_tail(topic.name.decode(), queue_id)
        return <QueueTail>queue

    cdef unsigned long long _next_random(self) noexcept:
        """xorshift64: spreads messages, promises nothing."""
        cdef unsigned long long x = self._random
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
        self._random = x
        return x >> 11

    cdef int _answer(
        self, const Request* send, long long queue_id, const Text* unique_id, long long offset, long long queue_offset
    ) except -1:
        """Append the answer of one stored message to the output."""
        cdef unsigned char* start
        cdef unsigned char* at
        cdef unsigned char* value
        cdef unsigned int header
        if self._out_size + self._answer_max > self._out_room:
            start = <unsigned char*>PyMem_Realloc(self._out, self._out_room * 2 + self._answer_max)
            if start == NULL:
                raise MemoryError
            self._out = start
            self._out_room = self._out_room * 2 + self._answer_max
        start = self._out + self._out_size
        at = start + 8
        if not send.binary:
            at = put_bytes(at, self._json[0].at, self._json[0].size)
            at = put_decimal(at, queue_id)
            at = put_bytes(at, self._json[1].at, self._json[1].size)
            at = put_bytes(at, unique_id.at, unique_id.size)
            at = put_bytes(at, self._json[2].at, self._json[2].size)
            at = put_bytes(at, self._host.at, self._host.size)
            at = put_hex16(at, <unsigned long long>offset)
            at = put_bytes(at, self._json[3].at, self._json[3].size)
            at = put_decimal(at, queue_offset)
            at = put_bytes(at, self._json[4].at, self._json[4].size)
            at = put_decimal(at, send.opaque)
            at = put_bytes(at, self._json[5].at, self._json[5].size)
        else:
            at = put_bytes(at, self._binary[0].at, self._binary[0].size)  # code, language, version
            at = put32(at, <unsigned int>send.opaque)
            at = put32(at, 1)  # a response
            at = put32(at, 0)  # no remark
            at += 4            # size of the ext fields, known below
            at = put_bytes(at, self._binary[1].at, self._binary[1].size)
            value = at + 4
            at = put_decimal(value, queue_id)
            put32(value - 4, <unsigned int>(at - value))
            at = put_bytes(at, self._binary[2].at, self._binary[2].size)
            at = put32(at, <unsigned int>unique_id.size)
            at = put_bytes(at, unique_id.at, unique_id.size)
            at = put_bytes(at, self._binary[3].at, self._binary[3].size)
            at = put32(at, <unsigned int>(self._host.size + 16))
            at = put_bytes(at, self._host.at, self._host.size)
            at = put_hex16(at, <unsigned long long>offset)
            at = put_bytes(at, self._binary[4].at, self._binary[4].size)
            value = at + 4
            at = put_decimal(value, queue_offset)
            put32(value - 4, <unsigned int>(at - value))
            put32(start + 25, <unsigned int>(at - start - 29))
        header = <unsigned int>(at - start - 8)
        put32(start, header + 4)
        put32(start + 4, header | (0x01000000u if send.binary else 0u))
        self._out_size = at - self._out
        return 0


cdef inline bint int32_in(const Text* text, long long* found) noexcept nogil:
    return read_number(text.at, text.size, -2147483648, 2147483647, found)


cdef int fix(bytes owner, Fixed* fixed) except -1:
    fixed.at = <Bytes>PyBytes_AS_STRING(owner)
    fixed.size = PyBytes_GET_SIZE(owner)
    return 0


cdef bint is_utf8(Bytes at, Py_ssize_t size) except -1:
    cdef Py_ssize_t i
    for i in range(size):
        if at[i] >= 128:
            break
    else:
        return True
    try:
        PyUnicode_DecodeUTF8(<const char*>at, size, NULL)
    except UnicodeDecodeError:
        return False
    return True
