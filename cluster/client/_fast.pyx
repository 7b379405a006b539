# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""fast.py compiled: the same frames, results and messages.

Cost per 1 KiB message, before and after: a send's frame 9 -> 0.6 us, its answer 8 -> 0.5 us, a
record read 16 -> 1.3 us (bench/client.py, one core).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN
from libc.string cimport memchr, memcmp, memcpy

from tandemmq.cluster.client import fast
from tandemmq.cluster.client.compression import decompress
from tandemmq.cluster.client.message import MessageQueue, ReceivedMessage, SendResult, SendStatus
from tandemmq.cluster.client.records import body_of, host_text
from tandemmq.cluster.client.records import read_records as read_records_in_doubt

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

try:
    from isal.isal_zlib import crc32
except ImportError:                 # where it has no build: slower
    from zlib import crc32

# Nothing is cimported from storage: its compiled form may be of another build.
from tandemmq.cluster.remoting._scan cimport (
    Bytes, Text, after_blanks, after_value, get32, get64, into_object, is_word, put32, put_decimal, read_name, read_number,
    read_text,
)

cdef enum:
    PROPERTIES_MAX = 32767
    COMPRESSED = 1
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    CACHED_HOSTS_MAX = 4096
    RECORD_HEAD = 28                # of a record, its queue offset included
    NAMES = 8

cdef object SEND_OK = SendStatus.SEND_OK
cdef dict _hosts = {}               # packed host -> its text

# --- frames of sends ---------------------------------------------------------------------------------


cdef struct Escaped:
    char* at
    Py_ssize_t size                 # as JSON
    Py_ssize_t room
    Py_ssize_t raw                  # before escaping


cdef bint put(Escaped* out, const char* text, Py_ssize_t size) noexcept nogil:
    """Append text as it stands inside a JSON string; False when there is no room."""
    cdef const char* digits = b"0123456789abcdef"
    cdef Py_ssize_t i
    cdef unsigned char c
    cdef char short_form
    if out.size + 6 * size > out.room:
        return False
    out.raw += size
    for i in range(size):
        c = <unsigned char>text[i]
        if c >= 32 and c != 34 and c != 92:
            out.at[out.size] = <char>c
            out.size += 1
            continue
        short_form = 0
        if c == 34 or c == 92:
            short_form = <char>c
        elif c == 8:
            short_form = 98
        elif c == 9:
            short_form = 116
        elif c == 10:
            short_form = 110
        elif c == 12:
            short_form = 102
        elif c == 13:
            short_form = 114
        out.at[out.size] = 92
        if short_form:
            out.at[out.size + 1] = short_form
            out.size += 2
        else:
            memcpy(out.at + out.size + 1, b"u00", 3)
            out.at[out.size + 4] = digits[c >> 4]
            out.at[out.size + 5] = digits[c & 15]
            out.size += 6
    return True


cdef bint put_entry(Escaped* out, str name, str value) except -1:
    """One property; False when it does not fit."""
    cdef Py_ssize_t name_size, value_size
    cdef const char* name_at = PyUnicode_AsUTF8AndSize(name, &name_size)
    cdef const char* value_at = PyUnicode_AsUTF8AndSize(value, &value_size)
    return (
        put(out, name_at, name_size) and put(out, b"\x01", 1)
        and put(out, value_at, value_size) and put(out, b"\x02", 1)
    )


cdef bint put_properties(Escaped* out, message, str unique_id) except -1:
    """In the order of Message.stored_properties."""
    cdef object given = message.properties
    if given:
        for name, value in given.items():
            if not put_entry(out, name, value):
                return False
    given = message.tags
    if given and not put_entry(out, "TAGS", given):
        return False
    given = message.keys
    if given and not put_entry(out, "KEYS", " ".join(given)):
        return False
    given = message.delay_level
    if given and not put_entry(out, "DELAY", str(given)):
        return False
    given = message.unique_id
    return (
        put_entry(out, "UNIQ_KEY", given or unique_id)
        and put_entry(out, "WAIT", "true" if message.wait_stored else "false")
        and out.raw <= PROPERTIES_MAX
    )


cdef inline Py_ssize_t put_number(char* at, long long value) noexcept nogil:
    """Its size as text."""
    return <char*>put_decimal(<unsigned char*>at, value) - at


cdef inline char* put_bytes(char* at, bytes part) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(part)
    memcpy(at, PyBytes_AS_STRING(part), size)
    return at + size


def send_frame(head, long long opaque, long long born_ms, int sys_flag, str unique_id, message, bytes body):
    """See fast.send_frame."""
    cdef char small[8192]
    cdef Escaped properties
    cdef bint fits
    properties.at = small
    properties.size = properties.raw = 0
    properties.room = 8192
    try:
        fits = put_properties(&properties, message, unique_id)
    except UnicodeEncodeError:
        return None
    if not fits:                    # seldom: long properties take the readable way, also to be refused
        return fast.send_frame(head, opaque, born_ms, sys_flag, unique_id, message, body)
    cdef tuple parts = head.parts
    cdef char sys_text[24]
    cdef char born_text[24]
    cdef char flag_text[24]
    cdef char opaque_text[24]
    cdef Py_ssize_t sys_size = put_number(sys_text, sys_flag)
    cdef Py_ssize_t born_size = put_number(born_text, born_ms)
    cdef Py_ssize_t flag_size = put_number(flag_text, message.flag)
    cdef Py_ssize_t opaque_size = put_number(opaque_text, opaque)
    cdef Py_ssize_t header = sys_size + born_size + flag_size + opaque_size + properties.size
    for part in parts:
        header += PyBytes_GET_SIZE(part)
    cdef Py_ssize_t body_size = PyBytes_GET_SIZE(body)
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, 8 + header + body_size)
    cdef char* at = PyBytes_AS_STRING(frame)
    put32(<unsigned char*>at, <unsigned int>(4 + header + body_size))
    put32(<unsigned char*>at + 4, <unsigned int>header)
    at = put_bytes(at + 8, <bytes>parts[0])
    memcpy(at, sys_text, sys_size)
    at = put_bytes(at + sys_size, <bytes>parts[1])
    memcpy(at, born_text, born_size)
    at = put_bytes(at + born_size, <bytes>parts[2])
    memcpy(at, flag_text, flag_size)
    at = put_bytes(at + flag_size, <bytes>parts[3])
    memcpy(at, properties.at, properties.size)
    at = put_bytes(at + properties.size, <bytes>parts[4])
    memcpy(at, opaque_text, opaque_size)
    at = put_bytes(at + opaque_size, <bytes>parts[5])
    memcpy(at, PyBytes_AS_STRING(body), body_size)
    return frame


# --- their answers -----------------------------------------------------------------------------------


cdef struct Answer:
    long long code
    long long opaque
    long long flag
    int seen                        # 1 code, 2 opaque, 4 flag
    Text message_id
    Text queue_id
    Text queue_offset
    Text transaction_id
    Text region
    long long epoch
    long long copies
    long long durable


cdef long long count_of(Text* text) noexcept nogil:
    """See calls.count_of."""
    cdef Py_ssize_t i
    cdef long long value = 0
    if text.size > 10:
        return 0
    for i in range(text.size):
        if text.at[i] < 48 or text.at[i] > 57:
            return 0
        value = value * 10 + (text.at[i] - 48)
    return value


cdef Bytes read_plain(Bytes at, Bytes end, Text* text) noexcept nogil:
    """As read_text; NULL also where it holds an escape or bytes beyond ASCII."""
    at = read_text(at, end, text)
    if at != NULL and text.marks:
        return NULL
    return at


cdef Bytes read_long(Bytes at, Bytes end, long long* found) noexcept nogil:
    cdef Bytes begin = at
    while at < end and (at[0] == 45 or 48 <= at[0] <= 57):
        at += 1
    return at if read_number(begin, at - begin, INT64_MIN, INT64_MAX, found) else NULL


cdef Bytes read_fields(Bytes at, Bytes end, Answer* answer) noexcept nogil:
    """Past the flat object of texts at `at`; NULL when it is not one."""
    cdef Text name, value
    cdef bint more = True
    at = into_object(at, end)
    if at != NULL and at < end and at[0] == 125:
        return at + 1
    while at != NULL and more:
        at = read_name(at, end, &name)
        if at == NULL:
            return NULL
        at = read_plain(at, end, &value)
        if at == NULL:
            return NULL
        if is_word(&name, b"msgId", 5):
            answer.message_id = value
        elif is_word(&name, b"queueId", 7):
            answer.queue_id = value
        elif is_word(&name, b"queueOffset", 11):
            answer.queue_offset = value
        elif is_word(&name, b"transactionId", 13):
            answer.transaction_id = value
        elif is_word(&name, b"MSG_REGION", 10):
            answer.region = value
        elif is_word(&name, b"epoch", 5):
            answer.epoch = count_of(&value)
        elif is_word(&name, b"copies", 6):
            answer.copies = count_of(&value)
        elif is_word(&name, b"durable", 7):
            answer.durable = count_of(&value)
        elif is_word(&name, b"recallHandle", 12):
            return NULL
        at = after_value(at, end, &more)
    return at


cdef bint read_answer(Bytes at, Bytes end, Answer* answer) noexcept nogil:
    """A response header in the shape that brokers write; False in any doubt."""
    cdef Text name, text
    cdef long long ignored
    cdef bint more = True
    answer.seen = 0
    answer.message_id.at = answer.queue_id.at = answer.queue_offset.at = NULL
    answer.transaction_id.at = answer.region.at = NULL
    answer.transaction_id.size = answer.region.size = 0
    answer.epoch = answer.copies = answer.durable = 0
    at = into_object(after_blanks(at, end), end)
    while at != NULL and more:
        at = read_name(at, end, &name)
        if at == NULL or at >= end:
            return False
        if is_word(&name, b"code", 4):
            at = read_long(at, end, &answer.code)
            answer.seen |= 1
        elif is_word(&name, b"opaque", 6):
            at = read_long(at, end, &answer.opaque)
            answer.seen |= 2
        elif is_word(&name, b"flag", 4):
            at = read_long(at, end, &answer.flag)
            answer.seen |= 4
        elif is_word(&name, b"extFields", 9):
            at = read_fields(at, end, answer)
        elif at[0] == 34:
            at = read_plain(at, end, &text)
        elif at + 4 <= end and memcmp(at, b"null", 4) == 0:
            at += 4
        else:
            at = read_long(at, end, &ignored)
        at = after_value(at, end, &more)
    return at != NULL and answer.seen == 7 and after_blanks(at, end) == end


cdef str _last_region = "DefaultRegion"
cdef bytes _last_region_bytes = b"DefaultRegion"


cdef str region_text(Text* text):
    global _last_region, _last_region_bytes
    if text.size == PyBytes_GET_SIZE(_last_region_bytes) and memcmp(
        text.at, PyBytes_AS_STRING(_last_region_bytes), text.size
    ) == 0:
        return _last_region
    _last_region_bytes = (<const char*>text.at)[:text.size]
    _last_region = _last_region_bytes.decode("ascii")
    return _last_region


def scan_sends(const unsigned char[::1] view not None, Py_ssize_t start, Py_ssize_t end, dict waiting not None):
    """See fast.scan_sends."""
    cdef Bytes base = &view[0] if view.shape[0] else NULL
    cdef Answer answer
    cdef unsigned int length, head_word
    cdef long long queue_id, queue_offset
    cdef list settled = []
    cdef object entry, queue
    if end > view.shape[0]:
        raise ValueError("end lies behind the view")
    while start + 8 <= end:
        length = get32(base + start)
        head_word = get32(base + start + 4)
        if length < 4 or start + 4 + <Py_ssize_t>length > end or head_word > length - 4:
            break
        if not read_answer(base + start + 8, base + start + 8 + head_word, &answer):
            break
        if answer.code != 0 or answer.flag & 3 != 1 or answer.message_id.at == NULL:
            break
        if answer.queue_id.at == NULL or answer.queue_offset.at == NULL:
            break
        if not read_number(answer.queue_id.at, answer.queue_id.size, INT64_MIN, INT64_MAX, &queue_id):
            break
        if not read_number(answer.queue_offset.at, answer.queue_offset.size, INT64_MIN, INT64_MAX, &queue_offset):
            break
        entry = waiting.get(answer.opaque)
        if entry is None:
            break
        queue = entry.queue
        if queue.queue_id != queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        settled.append((
            entry,
            SendResult(
                SEND_OK,
                entry.unique_id,
                PyUnicode_DecodeUTF8(<char*>answer.message_id.at, answer.message_id.size, NULL),
                queue,
                queue_offset,
                PyUnicode_DecodeUTF8(<char*>answer.transaction_id.at, answer.transaction_id.size, NULL)
                if answer.transaction_id.size else "",
                region_text(&answer.region) if answer.region.size else "",
                answer.epoch,
                answer.copies,
                answer.durable,
            ),
        ))
        start += 4 + length
    return start, settled


# --- records -----------------------------------------------------------------------------------------

cdef const char* _name_bytes[NAMES]
_name_bytes[:] = [b"UNIQ_KEY", b"CLUSTER", b"MSG_REGION", b"TRACE_ON", b"WAIT", b"TAGS", b"KEYS", b"RETRY_TOPIC"]
cdef Py_ssize_t _name_sizes[NAMES]
_name_sizes[:] = [8, 7, 10, 8, 4, 4, 4, 11]
cdef list _names = ["UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT", "TAGS", "KEYS", "RETRY_TOPIC"]
cdef list _last_values = [""] * NAMES       # CLUSTER and its like repeat from message to message


cdef str value_text(Py_ssize_t known, Bytes at, Py_ssize_t size):
    cdef Py_ssize_t last_size
    cdef const char* last_at
    cdef str value
    if 0 < known:                   # a UNIQ_KEY never repeats
        value = <str>_last_values[known]
        last_at = PyUnicode_AsUTF8AndSize(value, &last_size)
        if last_size == size and memcmp(last_at, at, size) == 0:
            return value
    value = PyUnicode_DecodeUTF8(<char*>at, size, "replace")
    if 0 < known:
        _last_values[known] = value
    return value


cdef dict read_properties(Bytes at, Py_ssize_t size):
    """As storage's decode_properties."""
    cdef dict found = {}
    cdef Bytes end = at + size
    cdef Bytes stop
    cdef Bytes mark
    cdef Py_ssize_t known, name_size
    cdef object name
    while at < end:
        stop = <Bytes>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        mark = <Bytes>memchr(at, 1, stop - at)
        if mark != NULL and mark > at and mark + 1 < stop:
            name_size = mark - at
            name = None
            for known in range(NAMES):
                if _name_sizes[known] == name_size and memcmp(_name_bytes[known], at, name_size) == 0:
                    name = _names[known]
                    break
            else:
                known = -1
                name = PyUnicode_DecodeUTF8(<char*>at, name_size, "replace")
            found[name] = value_text(known, mark + 1, stop - mark - 1)
        at = stop + 1
    return found


cdef str hex_id(Bytes host, Py_ssize_t host_size, unsigned long long offset):
    """Store host and CommitLog offset as upper-case hex: the broker's message id."""
    cdef char text[56]
    cdef const char* digits = b"0123456789ABCDEF"
    cdef Py_ssize_t i
    for i in range(host_size):
        text[2 * i] = digits[host[i] >> 4]
        text[2 * i + 1] = digits[host[i] & 15]
    for i in range(16):
        text[2 * host_size + i] = digits[(offset >> (60 - 4 * i)) & 15]
    return PyUnicode_DecodeUTF8(text, 2 * host_size + 16, NULL)


cdef str host_of(Bytes at, Py_ssize_t size):
    cdef bytes packed = (<const char*>at)[:size]
    cdef object text = _hosts.get(packed)
    if text is None:
        text = host_text(packed)
        if len(_hosts) >= CACHED_HOSTS_MAX:
            _hosts.clear()
        _hosts[packed] = text
    return text


def record_starts(bytes data not None):
    """See fast.record_starts."""
    cdef Bytes base = <Bytes>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = 0
    cdef int size
    cdef list starts = [0]
    while end - at >= RECORD_HEAD:
        size = <int>get32(base + at)
        if size < RECORD_HEAD or size > end - at:
            break
        at += size
        starts.append(at)
    return starts


def read_records(const unsigned char[::1] view not None, str broker_name, long long max_offset):
    """See records.read_records. Anything odd is read again by it, which then says what is wrong."""
    cdef Py_ssize_t size = view.shape[0], position = 0, record, at, host_size, store_size, topic_size, count
    cdef Bytes base = &view[0] if size else NULL
    cdef Bytes r
    cdef int sys_flag, queue_id, last_queue_id = -1
    cdef unsigned int magic
    cdef Py_ssize_t body_size, properties_size
    cdef list messages = []
    cdef dict properties
    cdef object queue = None, body, topic
    cdef str stored_in = None, placed
    cdef bytes last_topic = b""
    cdef bint retried = False
    while position < size:
        r = base + position
        if size - position < 91:
            return read_records_in_doubt(view, broker_name, max_offset)
        record = get32(r)
        magic = get32(r + 4)
        if record < 91 or record > size - position or magic != 0xDAA320A7:
            return read_records_in_doubt(view, broker_name, max_offset)
        sys_flag = <int>get32(r + 36)
        host_size = 20 if sys_flag & BORN_V6 else 8
        store_size = 20 if sys_flag & STORE_V6 else 8
        at = 48 + host_size + 8 + store_size + 12
        if at + 4 > record:
            return read_records_in_doubt(view, broker_name, max_offset)
        body_size = <int>get32(r + at)
        at += 4
        if body_size < 0 or body_size > record - at - 3:
            return read_records_in_doubt(view, broker_name, max_offset)
        topic_size = r[at + body_size]
        if at + body_size + 1 + topic_size + 2 > record:
            return read_records_in_doubt(view, broker_name, max_offset)
        properties_size = (<Py_ssize_t>r[at + body_size + 1 + topic_size] << 8) | r[at + body_size + 2 + topic_size]
        if at + body_size + 1 + topic_size + 2 + properties_size != record:
            return read_records_in_doubt(view, broker_name, max_offset)
        body = PyBytes_FromStringAndSize(<char*>(r + at), body_size)
        if <unsigned int>(crc32(body) & 0x7FFFFFFF) != get32(r + 8):
            return read_records_in_doubt(view, broker_name, max_offset)
        queue_id = <int>get32(r + 12)
        if stored_in is None or queue_id != last_queue_id or topic_size != PyBytes_GET_SIZE(last_topic) or memcmp(
            PyBytes_AS_STRING(last_topic), r + at + body_size + 1, topic_size
        ) != 0:
            last_topic = (<const char*>(r + at + body_size + 1))[:topic_size]
            stored_in = last_topic.decode("utf-8", "replace")
            retried = stored_in.startswith("%RETRY%")
            last_queue_id = queue_id
            queue = MessageQueue(stored_in, broker_name, queue_id)
        properties = read_properties(r + at + body_size + 1 + topic_size + 2, properties_size)
        topic = properties.get("RETRY_TOPIC", stored_in) if retried else stored_in
        if sys_flag & COMPRESSED:
            body = body_of(body, sys_flag, stored_in, <long long>get64(r + 20))
        placed = hex_id(r + 48 + host_size + 8, store_size, get64(r + 28))
        messages.append(ReceivedMessage(
            topic,
            body,
            queue,
            <long long>get64(r + 20),
            properties.get("UNIQ_KEY", placed),
            placed,
            properties,
            <int>get32(r + 56 + host_size + store_size),
            <long long>get64(r + 40),
            <long long>get64(r + 48 + host_size),
            host_of(r + 48, host_size),
            host_of(r + 56 + host_size, store_size),
            <long long>get64(r + 28),
            <int>get32(r + 16),
            sys_flag,
            max_offset,
        ))
        position += record
    return messages
