/* The echo server's frame splitting: each request frame in a chunk becomes one fixed-size answer.
 *
 *   answer(buffer, start, end, opaque_offset) -> (consumed, bytes)
 *
 * buffer[start:end] holds frames; consumed counts the bytes of whole frames. A JSON request gets a JSON answer, a
 * binary one a binary answer, each with the fields and the size of a broker's answer to a send. `opaque_offset` is
 * added to every answered opaque: 0 is an honest server, anything else one that a load generator must refuse.
 * Raises ValueError for a frame that is none. Wire: docs/formats.md "Frame".
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <arpa/inet.h>
#include <stdint.h>
#include <string.h>

#define JSON_HEAD                                                                                                  \
    "{\"code\":0,\"extFields\":{\"queueId\":\"0\",\"transactionId\":\"C0A801057A6918B4AAC20000000000A1\","         \
    "\"msgId\":\"C0A8010A00002A9F0000000000000000\",\"TRACE_ON\":\"true\",\"MSG_REGION\":\"DefaultRegion\","       \
    "\"queueOffset\":\"0000000\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":"
#define JSON_TAIL "          ,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}"

enum { OPAQUE_DIGITS_MAX = 10, JSON_HEAD_BYTES = sizeof JSON_HEAD - 1, ANSWER_BYTES_MAX = 512 };
enum { FRAME_BYTES_MAX = 16777216 };

static uint8_t json_answer[ANSWER_BYTES_MAX], binary_answer[ANSWER_BYTES_MAX];
static uint32_t json_bytes, binary_bytes;

static uint32_t get32(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return ntohl(value); }
static void put32(uint8_t *at, uint32_t value) { value = htonl(value); memcpy(at, &value, 4); }

static uint32_t put_field(uint8_t *at, const char *name, const char *value) {
    uint32_t name_bytes = (uint32_t)strlen(name), value_bytes = (uint32_t)strlen(value);
    at[0] = 0, at[1] = (uint8_t)name_bytes;
    memcpy(at + 2, name, name_bytes);
    put32(at + 2 + name_bytes, value_bytes);
    memcpy(at + 6 + name_bytes, value, value_bytes);
    return 6 + name_bytes + value_bytes;
}

static void prepare_answers(void) {
    uint32_t head = (uint32_t)sprintf((char *)json_answer + 8, "%s%s", JSON_HEAD, JSON_TAIL);
    json_bytes = 8 + head;
    put32(json_answer, 4 + head);
    put32(json_answer + 4, head);

    uint8_t *start = binary_answer + 8, *at = start + 21;
    at += put_field(at, "queueId", "0");
    at += put_field(at, "transactionId", "C0A801057A6918B4AAC20000000000A1");
    at += put_field(at, "msgId", "C0A8010A00002A9F0000000000000000");
    at += put_field(at, "TRACE_ON", "true");
    at += put_field(at, "MSG_REGION", "DefaultRegion");
    at += put_field(at, "queueOffset", "0000000");
    head = (uint32_t)(at - start);
    start[3] = 479 >> 8, start[4] = 479 & 255;
    put32(start + 9, 1);
    put32(start + 17, head - 21);
    binary_bytes = 8 + head;
    put32(binary_answer, 4 + head);
    put32(binary_answer + 4, head | 0x01000000u);
}

/* The opaque of a JSON header, searched from its end: clients write it among the last members. */
static int find_opaque(const uint8_t *head, uint32_t bytes, int64_t *opaque) {
    static const char name[] = "\"opaque\":";
    for (const uint8_t *at = head + bytes - (sizeof name - 1); at >= head; at--) {
        if (*at != '"' || memcmp(at, name, sizeof name - 1)) continue;
        const uint8_t *end = head + bytes;
        int64_t sum = 0;
        for (at += sizeof name - 1; at < end && *at >= '0' && *at <= '9' && sum < 1LL << 40; at++)
            sum = sum * 10 + (*at - '0');
        *opaque = sum;
        return 1;
    }
    return 0;
}

static uint32_t answer_json(uint8_t *out, int64_t opaque) {
    memcpy(out, json_answer, json_bytes);
    uint8_t *at = out + 8 + JSON_HEAD_BYTES + OPAQUE_DIGITS_MAX;
    uint32_t value = (uint32_t)opaque;
    do *--at = (uint8_t)('0' + value % 10); while (value /= 10);
    return json_bytes;
}

/* Returns bytes written, or -1 when buffer[at:end] starts with no frame. */
static Py_ssize_t answer_frames(const uint8_t *at, const uint8_t *end, int64_t opaque_offset, uint8_t *out,
                                const uint8_t **consumed) {
    uint8_t *start = out;
    while (end - at >= 8) {
        uint64_t frame_bytes = (uint64_t)get32(at) + 4;
        uint32_t word = get32(at + 4), head_bytes = word & 0xFFFFFF, type = word >> 24;
        if (frame_bytes > FRAME_BYTES_MAX || head_bytes + 8ULL > frame_bytes || type > 1) return -1;
        if ((uint64_t)(end - at) < frame_bytes) break;
        int64_t opaque;
        if (type == 0) {
            if (!find_opaque(at + 8, head_bytes, &opaque)) return -1;
            out += answer_json(out, opaque + opaque_offset);
        } else {
            if (head_bytes < 21) return -1;
            memcpy(out, binary_answer, binary_bytes);
            put32(out + 8 + 5, get32(at + 8 + 5) + (uint32_t)opaque_offset);
            out += binary_bytes;
        }
        at += frame_bytes;
    }
    *consumed = at;
    return out - start;
}

static Py_ssize_t count_frames(const uint8_t *at, const uint8_t *end) {
    Py_ssize_t count = 0;
    while (end - at >= 8) {
        uint64_t frame_bytes = (uint64_t)get32(at) + 4;
        if ((uint64_t)(end - at) < frame_bytes) break;
        at += frame_bytes;
        count++;
    }
    return count;
}

static PyObject *answer(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    if (count != 4) return PyErr_Format(PyExc_TypeError, "answer takes 4 arguments, got %zd", count);
    Py_ssize_t start = PyLong_AsSsize_t(arguments[1]), end = PyLong_AsSsize_t(arguments[2]);
    long long opaque_offset = PyLong_AsLongLong(arguments[3]);
    if (PyErr_Occurred()) return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(arguments[0], &view, PyBUF_SIMPLE)) return NULL;
    PyObject *result = NULL, *bytes = NULL;
    if (start < 0 || end < start || end > view.len) {
        PyErr_SetString(PyExc_IndexError, "range outside of the buffer");
        goto done;
    }
    const uint8_t *base = view.buf, *consumed = base + start;
    Py_ssize_t room = count_frames(base + start, base + end) * (json_bytes > binary_bytes ? json_bytes : binary_bytes);
    bytes = PyBytes_FromStringAndSize(NULL, room);
    if (!bytes) goto done;
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(bytes);
    Py_ssize_t used = answer_frames(base + start, base + end, opaque_offset, out, &consumed);
    if (used < 0) {
        PyErr_SetString(PyExc_ValueError, "not a frame");
        goto done;
    }
    if (used < room && _PyBytes_Resize(&bytes, used)) goto done;
    result = Py_BuildValue("nO", (Py_ssize_t)(consumed - base) - start, bytes);
done:
    Py_XDECREF(bytes);
    PyBuffer_Release(&view);
    return result;
}

static PyMethodDef methods[] = {
    { "answer", (PyCFunction)(void (*)(void))answer, METH_FASTCALL,
      "answer(buffer, start, end, opaque_offset) -> (consumed, bytes)" },
    { NULL, NULL, 0, NULL },
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "echo_split", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_echo_split(void) {
    prepare_answers();
    return PyModule_Create(&definition);
}
