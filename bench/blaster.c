/* Closed-loop load on one RocketMQ broker: one thread, epoll, every answer checked, one JSON object on stdout.
 *
 * Cost per message at 8 x 64 x 1 KiB: one patched frame (10 + 16 bytes), no copy of it, no allocation, 1/64 of a
 * writev and of a recv. An answer is parsed in full when its layout is new (and every 64th time), else its fields
 * are compared where the last full parse found them. Wire: remoting.md sections 1, 2, 10.1, 10.5; the same tables
 * are in docs/formats.md. A message is counted when its answer arrived inside the measured window.
 *
 *   modes   send   SEND_MESSAGE_V2 (310); the echo server takes the same frames
 *           pull   PULL_MESSAGE (11), 32 at a time, over queues filled before; every record of the body is walked
 *           wake   one held pull, one send at a time: time from the send to the pull's answer
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SEND_MESSAGE_V2 = 310, PULL_MESSAGE = 11, PULL_COUNT = 32, RESPONSE = 1 };
enum { FRAME_BYTES_MAX = 16777216, CHUNK_BYTES = 256 * 1024, SHARED_BYTES = FRAME_BYTES_MAX + CHUNK_BYTES };
enum { HEAD_BYTES_MAX = 2048, QUEUES_MAX = 1024, IOV_MAX_USED = 256, INLINE_BODY_MAX = 4096, RELEARN_EVERY = 64 };
enum { OPAQUE_BASE = 1000000000 };   /* every opaque has ten digits, so frames keep their length */
#define NS 1000000000ULL

typedef struct { int64_t min_offset, max_offset, cursor; int id; } Queue;

typedef struct {
    uint8_t *frame;             /* prebuilt; patched in place before each use */
    uint32_t frame_bytes;       /* without a shared body */
    uint32_t opaque_at, key_at; /* where to patch */
    int32_t opaque;             /* expected in the answer */
    int outstanding;
    uint32_t generation;
    int queue;                  /* index into queues */
    int64_t queue_offset;       /* asked for by a pull */
    uint64_t sent_ns;
} Slot;

typedef struct {                /* header layout of the last fully parsed JSON answer */
    uint8_t text[HEAD_BYTES_MAX];
    uint32_t bytes;
    uint32_t code_key, code_value, flag_key, flag_value, opaque_key, opaque_value, offset_key, offset_value;
    uint32_t uses;
} Layout;

typedef struct {
    int fd;
    Slot *slots;
    uint32_t *ready;            /* ring of slot numbers waiting to be written */
    uint32_t ready_head, ready_count;
    uint32_t first_written;     /* bytes of the first ready slot that are already on the wire */
    uint8_t *rest;              /* incomplete frame of the last chunk */
    uint32_t rest_bytes, rest_room;
    uint32_t outstanding;
    int wants_out;
    Layout layout;
} Connection;

typedef struct {                /* what an answer's header says */
    int64_t code, flag, opaque, next_begin_offset;
    int has_code, has_flag, has_opaque, has_queue_offset, has_next;
    const uint8_t *remark;
    uint32_t remark_bytes;
    uint32_t code_key, code_value, flag_key, flag_value, opaque_key, opaque_value, offset_key, offset_value;
} Answer;

typedef struct { uint64_t on_cpu_ns, wait_ns, tasks; } Schedule;

static struct {
    const char *host, *mode, *topic, *group;
    int port, connections, outstanding, body_bytes, binary, core, queue_count, pid;
    double warmup_s, seconds;
    long long count;
} options = { .host = "127.0.0.1", .mode = "send", .topic = "bench", .group = "bench-group", .connections = 8,
              .outstanding = 64, .body_bytes = 1024, .core = -1, .queue_count = 8, .warmup_s = 0.5, .seconds = 2 };

static Queue queues[QUEUES_MAX];
static uint8_t *body, *shared;
static uint64_t key_counter, histogram[64 * 64], acknowledged, measured, responses_measured, requests_sent;
static uint64_t answers_json, answers_binary, body_bytes_measured, full_parses;
static int measuring, stopping;
static char key_text[33];

static void refuse(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("blaster: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(2);
}

static uint64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * NS + (uint64_t)at.tv_nsec;
}

static void put16(uint8_t *at, uint32_t value) { at[0] = (uint8_t)(value >> 8); at[1] = (uint8_t)value; }
static void put32(uint8_t *at, uint32_t value) { value = htonl(value); memcpy(at, &value, 4); }
static uint32_t get32(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return ntohl(value); }
static uint32_t get16(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }
static uint64_t get64(const uint8_t *at) { return (uint64_t)get32(at) << 32 | get32(at + 4); }

/* ---- latency: buckets of 1/64 of a power of two, nanoseconds ---- */

static void record_latency(uint64_t ns) {
    uint32_t shift = ns < 64 ? 0 : (uint32_t)(63 - __builtin_clzll(ns)) - 5;
    histogram[shift * 64 + (ns >> shift)]++;    /* (ns >> shift) is 32..63 when shift > 0 */
}

static double latency_us(double quantile) {
    uint64_t total = 0, seen = 0;
    for (int i = 0; i < 64 * 64; i++) total += histogram[i];
    if (!total) return 0;
    uint64_t wanted = (uint64_t)(quantile * (double)(total - 1));
    for (int i = 0; i < 64 * 64; i++) {
        seen += histogram[i];
        if (seen > wanted) return (double)(((uint64_t)(i % 64) << (i / 64)) + ((1ULL << (i / 64)) >> 1)) / 1000;
    }
    return 0;
}

/* ---- CPU time: /proc/PID/task/N/schedstat, because /proc/PID/schedstat is one thread's ---- */

static Schedule schedule_of(int pid) {
    Schedule sum = { 0, 0, 0 };
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *directory = opendir(path);
    if (!directory) refuse("process %d is gone", pid);
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (entry->d_name[0] == '.') continue;
        char file[384];
        unsigned long long on_cpu, wait;
        snprintf(file, sizeof file, "/proc/%d/task/%s/schedstat", pid, entry->d_name);
        FILE *stream = fopen(file, "r");
        if (!stream) continue;                  /* the thread ended between readdir and open */
        if (fscanf(stream, "%llu %llu", &on_cpu, &wait) == 2) {
            sum.on_cpu_ns += on_cpu;
            sum.wait_ns += wait;
            sum.tasks++;
        }
        fclose(stream);
    }
    closedir(directory);
    return sum;
}

/* ---- request frames ---- */

static uint32_t put_text(uint8_t *at, const char *text) {
    uint32_t bytes = (uint32_t)strlen(text);
    memcpy(at, text, bytes);
    return bytes;
}

typedef struct { uint8_t *at; uint32_t bytes; int fields, key_at; } Head;

static void add_field(Head *head, const char *name, const char *value) {
    uint8_t *at = head->at + head->bytes;
    uint32_t value_bytes = (uint32_t)strlen(value), name_bytes = (uint32_t)strlen(name);
    if (options.binary) {
        put16(at, name_bytes);
        memcpy(at + 2, name, name_bytes);
        put32(at + 2 + name_bytes, value_bytes);
        memcpy(at + 6 + name_bytes, value, value_bytes);
        const char *key = strstr(value, key_text);
        if (key) head->key_at = (int)(head->bytes + 6 + name_bytes + (uint32_t)(key - value));
        head->bytes += 6 + name_bytes + value_bytes;
    } else {
        uint8_t *start = at;
        if (head->fields) *at++ = ',';
        *at++ = '"';
        at += put_text(at, name);
        at += put_text(at, "\":\"");
        const char *key = strstr(value, key_text);
        for (const char *c = value; *c; c++) {
            if (c == key) head->key_at = (int)(at - head->at);
            if ((uint8_t)*c < 0x20) at += sprintf((char *)at, "\\u%04x", *c);
            else *at++ = (uint8_t)*c;
        }
        *at++ = '"';
        head->bytes += (uint32_t)(at - start);
    }
    head->fields++;
}

static void add_number(Head *head, const char *name, long long value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", value);
    add_field(head, name, text);
}

static void add_send_fields(Head *head, int queue_id) {
    char properties[256];
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    snprintf(properties, sizeof properties, "UNIQ_KEY\1%s\2WAIT\1true\2TAGS\1TagA\2", key_text);
    add_field(head, "a", options.group);
    add_field(head, "b", options.topic);
    add_field(head, "c", "TBW102");
    add_field(head, "d", "8");
    add_number(head, "e", queue_id);
    add_field(head, "f", "0");
    add_number(head, "g", (long long)at.tv_sec * 1000 + at.tv_nsec / 1000000);
    add_field(head, "h", "0");
    add_field(head, "i", properties);
    add_field(head, "j", "0");
    add_field(head, "k", "false");
    add_field(head, "m", "false");
    add_field(head, "n", "bench-broker");
}

static void add_pull_fields(Head *head, int queue_id, int64_t queue_offset, int suspend_ms) {
    add_number(head, "commitOffset", 0);
    add_field(head, "consumerGroup", options.group);
    add_field(head, "expressionType", "TAG");
    add_number(head, "maxMsgNums", PULL_COUNT);
    add_number(head, "queueId", queue_id);
    add_number(head, "queueOffset", queue_offset);
    add_number(head, "subVersion", 0);
    add_field(head, "subscription", "*");
    add_number(head, "suspendTimeoutMillis", suspend_ms);
    add_number(head, "sysFlag", suspend_ms ? 6 : 4);
    add_field(head, "topic", options.topic);
}

/* Writes one frame at slot->frame; a body of `body_bytes` follows it, inline when `inline_body`. */
static void build_frame(Slot *slot, int code, int queue_id, int64_t queue_offset, int suspend_ms,
                        uint32_t body_bytes, int inline_body) {
    uint8_t *frame = slot->frame, *start = frame + 8;
    Head head = { start, 0, 0, -1 };
    if (options.binary) {
        memset(start, 0, 21);
        put16(start, (uint32_t)code);
        put16(start + 3, 479);
        slot->opaque_at = 8 + 5;
        head.bytes = 21;
    } else {
        head.bytes = (uint32_t)sprintf((char *)start, "{\"code\":%d,\"extFields\":{", code);
    }
    if (code == SEND_MESSAGE_V2) add_send_fields(&head, queue_id);
    else add_pull_fields(&head, queue_id, queue_offset, suspend_ms);
    if (options.binary) {
        put32(start + 17, head.bytes - 21);
    } else {
        head.bytes += put_text(start + head.bytes, "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":");
        slot->opaque_at = 8 + head.bytes;
        head.bytes += put_text(start + head.bytes,
                               "1000000000,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}");
    }
    slot->key_at = head.key_at < 0 ? 0 : 8 + (uint32_t)head.key_at;
    put32(frame, 4 + head.bytes + body_bytes);
    put32(frame + 4, head.bytes | (options.binary ? 0x01000000u : 0));
    slot->frame_bytes = 8 + head.bytes;
    if (inline_body && body_bytes) {
        memcpy(frame + slot->frame_bytes, body, body_bytes);
        slot->frame_bytes += body_bytes;
    }
}

static void patch_opaque(Slot *slot, uint32_t number) {
    uint32_t slot_bits = 1;
    while ((1u << slot_bits) < (uint32_t)options.outstanding) slot_bits++;
    uint32_t generation = slot->generation++ & ((1u << (30 - slot_bits)) - 1);
    slot->opaque = (int32_t)(OPAQUE_BASE + ((generation << slot_bits) | number));
    uint8_t *at = slot->frame + slot->opaque_at;
    if (options.binary) {
        put32(at, (uint32_t)slot->opaque);
    } else {
        uint32_t value = (uint32_t)slot->opaque;
        for (int i = 9; i >= 0; i--, value /= 10) at[i] = (uint8_t)('0' + value % 10);
    }
}

static void patch_key(Slot *slot) {             /* the last 16 of 32 hex digits count messages */
    static const char digits[] = "0123456789ABCDEF";
    uint64_t value = key_counter++;
    uint8_t *at = slot->frame + slot->key_at + 16;
    for (int i = 15; i >= 0; i--, value >>= 4) at[i] = (uint8_t)digits[value & 15];
}

/* ---- answers ---- */

typedef struct { const uint8_t *at, *end; int depth; } Text;

static void skip_space(Text *text) {
    while (text->at < text->end && (*text->at == ' ' || *text->at == '\t' || *text->at == '\n' || *text->at == '\r'))
        text->at++;
}

static int skip_string(Text *text) {            /* at the opening quote; leaves the closing one behind */
    if (text->at >= text->end || *text->at != '"') return 0;
    for (text->at++; text->at < text->end; text->at++) {
        if (*text->at == '\\') text->at++;
        else if (*text->at == '"') { text->at++; return 1; }
        else if (*text->at < 0x20) return 0;
    }
    return 0;
}

static int parse_number(const uint8_t *at, const uint8_t *end, int64_t *value) {
    int negative = at < end && *at == '-';
    const uint8_t *start = at += negative;
    int64_t sum = 0;
    while (at < end && *at >= '0' && *at <= '9' && at - start < 19) sum = sum * 10 + (*at++ - '0');
    *value = negative ? -sum : sum;
    return at > start && (at == end || *at == ',' || *at == '}' || *at == '"' || *at == ' ');
}

static int parse_object(Text *text, Answer *answer, const uint8_t *base, int in_ext);

static int parse_value(Text *text) {
    skip_space(text);
    if (text->at >= text->end) return 0;
    if (*text->at == '"') return skip_string(text);
    if (*text->at == '{') return parse_object(text, NULL, NULL, 0);
    const uint8_t *start = text->at;
    while (text->at < text->end && strchr("-+.0123456789eEtrufalsn", *text->at) && *text->at) text->at++;
    return text->at > start;
}

static int is_name(const uint8_t *at, const uint8_t *end, const char *name) {
    size_t bytes = strlen(name);
    return (size_t)(end - at) == bytes && !memcmp(at, name, bytes);
}

static int note_field(Answer *answer, const uint8_t *base, const uint8_t *name, const uint8_t *name_end,
                      const uint8_t *value, const uint8_t *value_end, int in_ext) {
    uint32_t key_at = (uint32_t)(name - 1 - base), value_at = (uint32_t)(value - base);
    if (in_ext) {
        if (is_name(name, name_end, "queueOffset")) {
            int64_t ignored;
            if (*value != '"' || !parse_number(value + 1, value_end, &ignored)) return 0;
            answer->has_queue_offset = 1, answer->offset_key = key_at, answer->offset_value = value_at;
        } else if (is_name(name, name_end, "nextBeginOffset")) {
            if (*value != '"' || !parse_number(value + 1, value_end, &answer->next_begin_offset)) return 0;
            answer->has_next = 1;
        }
    } else if (is_name(name, name_end, "code")) {
        answer->has_code = parse_number(value, value_end, &answer->code);
        answer->code_key = key_at, answer->code_value = value_at;
        return answer->has_code;
    } else if (is_name(name, name_end, "flag")) {
        answer->has_flag = parse_number(value, value_end, &answer->flag);
        answer->flag_key = key_at, answer->flag_value = value_at;
        return answer->has_flag;
    } else if (is_name(name, name_end, "opaque")) {
        answer->has_opaque = parse_number(value, value_end, &answer->opaque);
        answer->opaque_key = key_at, answer->opaque_value = value_at;
        return answer->has_opaque;
    } else if (is_name(name, name_end, "remark")) {
        answer->remark = value, answer->remark_bytes = (uint32_t)(value_end - value);
    }
    return 1;
}

static int parse_object(Text *text, Answer *answer, const uint8_t *base, int in_ext) {
    skip_space(text);
    if (text->at >= text->end || *text->at != '{' || ++text->depth > 8) return 0;
    text->at++;
    for (int members = 0;; members++) {
        skip_space(text);
        if (text->at >= text->end) return 0;
        if (*text->at == '}' && !members) break;
        const uint8_t *name = text->at + 1;
        if (!skip_string(text)) return 0;
        const uint8_t *name_end = text->at - 1;
        skip_space(text);
        if (text->at >= text->end || *text->at++ != ':') return 0;
        skip_space(text);
        const uint8_t *value = text->at;
        if (answer && !in_ext && is_name(name, name_end, "extFields") && value < text->end && *value == '{') {
            if (!parse_object(text, answer, base, 1)) return 0;
        } else {
            if (!parse_value(text)) return 0;
            if (answer && !note_field(answer, base, name, name_end, value, text->at, in_ext)) return 0;
        }
        skip_space(text);
        if (text->at >= text->end) return 0;
        if (*text->at == '}') break;
        if (*text->at++ != ',') return 0;
    }
    text->at++;
    text->depth--;
    return 1;
}

static int parse_json(const uint8_t *head, uint32_t bytes, Answer *answer) {
    Text text = { head, head + bytes, 0 };
    full_parses++;
    return parse_object(&text, answer, head, 0) && text.at == text.end;
}

static int parse_binary(const uint8_t *head, uint32_t bytes, Answer *answer) {
    if (bytes < 21) return 0;
    answer->code = get16(head);
    answer->opaque = (int32_t)get32(head + 5);
    answer->flag = get32(head + 9);
    answer->has_code = answer->has_opaque = answer->has_flag = 1;
    uint32_t remark_bytes = get32(head + 13);
    if (remark_bytes > bytes - 21) return 0;
    answer->remark = head + 17, answer->remark_bytes = remark_bytes;
    const uint8_t *at = head + 17 + remark_bytes, *end = head + bytes;
    if ((uint32_t)(end - at - 4) != get32(at)) return 0;
    for (at += 4; at < end;) {
        if (end - at < 2) return 0;
        uint32_t name_bytes = get16(at);
        const uint8_t *name = at + 2;
        if ((uint64_t)(end - name) < (uint64_t)name_bytes + 4) return 0;
        uint32_t value_bytes = get32(name + name_bytes);
        const uint8_t *value = name + name_bytes + 4;
        if ((uint64_t)(end - value) < value_bytes) return 0;
        int64_t number;
        if (is_name(name, value - 4, "queueOffset"))
            answer->has_queue_offset = parse_number(value, value + value_bytes, &number);
        else if (is_name(name, value - 4, "nextBeginOffset"))
            answer->has_next = parse_number(value, value + value_bytes, &answer->next_begin_offset);
        at = value + value_bytes;
    }
    return 1;
}

static int same_key(const Layout *layout, const uint8_t *head, uint32_t key, uint32_t value) {
    return !memcmp(layout->text + key, head + key, value - key);
}

/* The fast reading: the fields of a success stand where the last full parse of an equally long header found them. */
static int read_by_layout(Layout *layout, const uint8_t *head, uint32_t bytes, Answer *answer) {
    if (bytes != layout->bytes || ++layout->uses % RELEARN_EVERY == 0) return 0;
    if (!same_key(layout, head, layout->code_key, layout->code_value + 2)) return 0;     /* value and what ends it */
    if (!same_key(layout, head, layout->flag_key, layout->flag_value + 2)) return 0;
    if (!same_key(layout, head, layout->offset_key, layout->offset_value + 1)) return 0;
    if (!same_key(layout, head, layout->opaque_key, layout->opaque_value)) return 0;
    int64_t ignored;
    if (!parse_number(head + layout->offset_value + 1, head + bytes, &ignored)) return 0;
    if (!parse_number(head + layout->opaque_value, head + bytes, &answer->opaque)) return 0;
    answer->code = 0, answer->flag = RESPONSE;
    answer->has_code = answer->has_flag = answer->has_opaque = answer->has_queue_offset = 1;
    return 1;
}

static void learn_layout(Layout *layout, const uint8_t *head, uint32_t bytes, const Answer *answer) {
    layout->bytes = 0;
    if (bytes > HEAD_BYTES_MAX || answer->code != 0 || answer->flag != RESPONSE || !answer->has_queue_offset) return;
    memcpy(layout->text, head, bytes);
    layout->bytes = bytes;
    layout->code_key = answer->code_key, layout->code_value = answer->code_value;
    layout->flag_key = answer->flag_key, layout->flag_value = answer->flag_value;
    layout->opaque_key = answer->opaque_key, layout->opaque_value = answer->opaque_value;
    layout->offset_key = answer->offset_key, layout->offset_value = answer->offset_value;
}

/* Counts the records of a pull's body: sizes add up, magic known, queue and queue offsets as asked, body as sent. */
static int walk_records(const uint8_t *at, uint32_t bytes, const Slot *slot) {
    const uint8_t *end = at + bytes;
    int count = 0;
    while (at < end) {
        if (end - at < 91) refuse("record cut: %ld bytes left after %d records", (long)(end - at), count);
        uint32_t size = get32(at), magic = get32(at + 4);
        if (size > (uint64_t)(end - at) || size < 91) refuse("record of %u bytes where %ld are left", size, (long)(end - at));
        if (magic != 0xDAA320A7u && magic != 0xDAA320ABu) refuse("record magic is %08x", magic);
        if ((int)get32(at + 12) != queues[slot->queue].id) refuse("record of queue %u", get32(at + 12));
        if ((int64_t)get64(at + 20) != slot->queue_offset + count)
            refuse("queue offset %ld, wanted %ld", (long)get64(at + 20), (long)slot->queue_offset + count);
        uint32_t flags = get32(at + 36);
        const uint8_t *body_bytes_at = at + 84 + (flags & 0x10 ? 12 : 0) + (flags & 0x20 ? 12 : 0);
        uint32_t body_bytes = get32(body_bytes_at);
        if (body_bytes != (uint32_t)options.body_bytes || body_bytes + 91 > size) refuse("body of %u bytes", body_bytes);
        if (count == 0 && memcmp(body_bytes_at + 4, body, body_bytes)) refuse("body differs from what was sent");
        at += size;
        count++;
    }
    return count;
}

/* Checks one whole frame; fills `answer`; refuses the run at anything that is not a correct answer. */
static void read_answer(Connection *connection, const uint8_t *frame, uint32_t frame_bytes, Answer *answer,
                        const uint8_t **body_at, uint32_t *body_size) {
    uint32_t word = get32(frame + 4), head_bytes = word & 0xFFFFFF, type = word >> 24;
    if (type > 1 || head_bytes > frame_bytes - 8) refuse("malformed frame: header word %08x", word);
    const uint8_t *head = frame + 8;
    *body_at = head + head_bytes;
    *body_size = frame_bytes - 8 - head_bytes;
    memset(answer, 0, sizeof *answer);
    if (type == 0) {
        answers_json++;
        if (!read_by_layout(&connection->layout, head, head_bytes, answer)) {
            memset(answer, 0, sizeof *answer);
            if (!parse_json(head, head_bytes, answer)) refuse("header is no JSON: %.*s", (int)head_bytes, head);
            learn_layout(&connection->layout, head, head_bytes, answer);
        }
    } else {
        answers_binary++;
        if (!parse_binary(head, head_bytes, answer)) refuse("malformed binary header of %u bytes", head_bytes);
    }
    if (!answer->has_flag || !(answer->flag & RESPONSE)) refuse("frame is no response");
    if (!answer->has_code || answer->code != 0)
        refuse("code %ld: %.*s", (long)answer->code, (int)answer->remark_bytes, answer->remark);
    if (!answer->has_opaque) refuse("answer without opaque");
}

static Slot *slot_of(Connection *connection, int64_t opaque, uint32_t *number) {
    uint32_t slot_bits = 1;
    while ((1u << slot_bits) < (uint32_t)options.outstanding) slot_bits++;
    *number = (uint32_t)(opaque - OPAQUE_BASE) & ((1u << slot_bits) - 1);
    Slot *slot = *number < (uint32_t)options.outstanding ? &connection->slots[*number] : NULL;
    if (!slot || !slot->outstanding || slot->opaque != opaque)
        refuse("opaque %ld answers no outstanding request", (long)opaque);
    return slot;
}

/* ---- the loop ---- */

static int pulling(void) { return options.mode[0] == 'p'; }

static void make_ready(Connection *connection, uint32_t number) {
    Slot *slot = &connection->slots[number];
    if (pulling()) {
        slot->queue = (slot->queue + 1) % options.queue_count;
        Queue *queue = &queues[slot->queue];
        slot->queue_offset = queue->cursor;
        queue->cursor += PULL_COUNT;
        if (queue->cursor + PULL_COUNT > queue->max_offset) queue->cursor = queue->min_offset;
        build_frame(slot, PULL_MESSAGE, queue->id, slot->queue_offset, 0, 0, 0);
    } else {
        patch_key(slot);
    }
    patch_opaque(slot, number);
    uint32_t end = connection->ready_head + connection->ready_count++;
    connection->ready[end % (uint32_t)options.outstanding] = number;
}

static void watch(int epoll, Connection *connection, int out) {
    struct epoll_event event = { .events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = connection };
    connection->wants_out = out;
    if (epoll_ctl(epoll, EPOLL_CTL_MOD, connection->fd, &event)) refuse("epoll_ctl: %s", strerror(errno));
}

static uint32_t wire_bytes(const Slot *slot, uint32_t shared_body) { return slot->frame_bytes + shared_body; }

/* Marks what one writev took; a slot is outstanding once its first byte is on the wire. */
static void advance(Connection *connection, size_t written, uint32_t shared_body, uint64_t at_ns) {
    while (written) {
        Slot *slot = &connection->slots[connection->ready[connection->ready_head % (uint32_t)options.outstanding]];
        uint32_t left = wire_bytes(slot, shared_body) - connection->first_written;
        if (!connection->first_written) {
            slot->sent_ns = at_ns;
            slot->outstanding = 1;
            connection->outstanding++;
            requests_sent++;
        }
        if (written < left) {
            connection->first_written += (uint32_t)written;
            return;
        }
        written -= left;
        connection->first_written = 0;
        connection->ready_head = (connection->ready_head + 1) % (uint32_t)options.outstanding;
        connection->ready_count--;
    }
}

static void flush(int epoll, Connection *connection) {
    uint32_t shared_body = !pulling() && options.body_bytes > INLINE_BODY_MAX ? (uint32_t)options.body_bytes : 0;
    while (connection->ready_count) {
        struct iovec parts[IOV_MAX_USED];
        int count = 0;
        uint32_t skip = connection->first_written;
        for (uint32_t i = 0; i < connection->ready_count && count < IOV_MAX_USED - 1; i++) {
            Slot *slot = &connection->slots[connection->ready[(connection->ready_head + i) % (uint32_t)options.outstanding]];
            if (skip < slot->frame_bytes) {
                uint8_t *start = slot->frame + skip;
                size_t bytes = slot->frame_bytes - skip;
                if (count && !shared_body && (uint8_t *)parts[count - 1].iov_base + parts[count - 1].iov_len == start)
                    parts[count - 1].iov_len += bytes;
                else parts[count++] = (struct iovec){ start, bytes };
                skip = 0;
            } else {
                skip -= slot->frame_bytes;
            }
            if (shared_body) parts[count++] = (struct iovec){ body + skip, shared_body - skip }, skip = 0;
        }
        uint64_t at_ns = now_ns();
        ssize_t written = writev(connection->fd, parts, count);
        if (written < 0) {
            if (errno != EAGAIN) refuse("write: %s", strerror(errno));
            if (!connection->wants_out) watch(epoll, connection, 1);
            return;
        }
        advance(connection, (size_t)written, shared_body, at_ns);
    }
    if (connection->wants_out) watch(epoll, connection, 0);
}

static void take_frame(Connection *connection, const uint8_t *frame, uint32_t frame_bytes, uint64_t at_ns) {
    Answer answer;
    const uint8_t *body_at;
    uint32_t body_size, number;
    read_answer(connection, frame, frame_bytes, &answer, &body_at, &body_size);
    Slot *slot = slot_of(connection, answer.opaque, &number);
    uint64_t messages = 1;
    if (pulling()) {
        messages = (uint64_t)walk_records(body_at, body_size, slot);
        if (!messages) refuse("FOUND without a message");
        if (!answer.has_next || answer.next_begin_offset != slot->queue_offset + (int64_t)messages)
            refuse("nextBeginOffset %ld after %lu messages from %ld", (long)answer.next_begin_offset,
                   (unsigned long)messages, (long)slot->queue_offset);
    } else {
        if (!answer.has_queue_offset) refuse("answer without queueOffset");
        if (body_size) refuse("answer to a send has a body of %u bytes", body_size);
    }
    slot->outstanding = 0;
    connection->outstanding--;
    acknowledged += messages;
    if (measuring) {
        measured += messages;
        responses_measured++;
        body_bytes_measured += body_size;
        record_latency(at_ns - slot->sent_ns);
    }
    if (!stopping && (!options.count || (long long)requests_sent + connection->ready_count < options.count))
        make_ready(connection, number);
}

static void receive(Connection *connection) {
    memcpy(shared, connection->rest, connection->rest_bytes);
    ssize_t got = recv(connection->fd, shared + connection->rest_bytes, CHUNK_BYTES, 0);
    if (got == 0) refuse("the server closed the connection");
    if (got < 0) {
        if (errno == EAGAIN) return;
        refuse("recv: %s", strerror(errno));
    }
    uint64_t at_ns = now_ns();
    uint8_t *at = shared, *end = shared + connection->rest_bytes + got;
    while (end - at >= 8) {
        uint32_t frame_bytes = get32(at) + 4;
        if (frame_bytes < 8 || frame_bytes > FRAME_BYTES_MAX) refuse("frame of %u bytes", frame_bytes);
        if ((uint64_t)(end - at) < frame_bytes) break;
        take_frame(connection, at, frame_bytes, at_ns);
        at += frame_bytes;
    }
    connection->rest_bytes = (uint32_t)(end - at);
    if (connection->rest_bytes > connection->rest_room) {
        connection->rest_room = connection->rest_bytes * 2;
        connection->rest = realloc(connection->rest, connection->rest_room);
        if (!connection->rest) refuse("out of memory");
    }
    memcpy(connection->rest, at, connection->rest_bytes);
}

static int connect_to_server(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)options.port) };
    if (fd < 0 || inet_pton(AF_INET, options.host, &address.sin_addr) != 1) refuse("bad address %s", options.host);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) refuse("connect: %s", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void open_connection(Connection *connection, int index) {
    int sends = !pulling(), count = options.outstanding;
    uint32_t inline_bytes = sends && options.body_bytes <= INLINE_BODY_MAX ? (uint32_t)options.body_bytes : 0;
    Slot probe = { .frame = malloc(HEAD_BYTES_MAX + INLINE_BODY_MAX) };
    build_frame(&probe, sends ? SEND_MESSAGE_V2 : PULL_MESSAGE, 0, 0, 0, sends ? (uint32_t)options.body_bytes : 0,
                inline_bytes > 0);
    uint32_t stride = sends && options.queue_count <= 10 ? probe.frame_bytes : HEAD_BYTES_MAX + inline_bytes;
    free(probe.frame);
    connection->fd = connect_to_server();
    if (fcntl(connection->fd, F_SETFL, O_NONBLOCK)) refuse("fcntl: %s", strerror(errno));
    connection->slots = calloc((size_t)count, sizeof(Slot));
    connection->ready = calloc((size_t)count, sizeof(uint32_t));
    uint8_t *frames = malloc((size_t)count * stride);
    if (!connection->slots || !connection->ready || !frames) refuse("out of memory");
    for (int i = 0; i < count; i++) {
        Slot *slot = &connection->slots[i];
        slot->frame = frames + (size_t)i * stride;
        slot->queue = (index + i) % options.queue_count;
        if (sends)
            build_frame(slot, SEND_MESSAGE_V2, queues[slot->queue].id, 0, 0, (uint32_t)options.body_bytes,
                        inline_bytes > 0);
    }
}

static uint32_t all_outstanding(Connection *connections) {
    uint32_t sum = 0;
    for (int i = 0; i < options.connections; i++) sum += connections[i].outstanding + connections[i].ready_count;
    return sum;
}

static double share(uint64_t part, uint64_t whole) { return whole ? (double)part / (double)whole : 0; }

static void print_result(uint64_t wall_ns, Schedule server, Schedule self) {
    double seconds = (double)wall_ns / (double)NS;
    printf("{\"messages\":%lu,\"responses\":%lu,\"acknowledged_total\":%lu,\"requests_total\":%lu,\"seconds\":%.6f,",
           measured, responses_measured, acknowledged, requests_sent, seconds);
    printf("\"rate\":%.1f,\"body_bytes\":%lu,\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f,",
           (double)measured / seconds, body_bytes_measured, latency_us(.5), latency_us(.99), latency_us(.999),
           latency_us(1));
    printf("\"answers_json\":%lu,\"answers_binary\":%lu,\"full_parses\":%lu,", answers_json, answers_binary, full_parses);
    printf("\"server_cpu_ns\":%lu,\"server_wait_ns\":%lu,\"server_threads\":%lu,", server.on_cpu_ns, server.wait_ns,
           server.tasks);
    printf("\"server_cpu_share\":%.4f,\"server_wait_share\":%.4f,\"generator_cpu_share\":%.4f,"
           "\"generator_wait_share\":%.4f}\n", share(server.on_cpu_ns, wall_ns), share(server.wait_ns, wall_ns),
           share(self.on_cpu_ns, wall_ns), share(self.wait_ns, wall_ns));
}

static Schedule since(Schedule after, Schedule before) {
    if (after.on_cpu_ns < before.on_cpu_ns) refuse("threads of the server ended during the run: its CPU time is unknown");
    return (Schedule){ after.on_cpu_ns - before.on_cpu_ns, after.wait_ns - before.wait_ns, after.tasks };
}

static void run_load(void) {
    int epoll = epoll_create1(0);
    Connection *connections = calloc((size_t)options.connections, sizeof *connections);
    if (epoll < 0 || !connections) refuse("out of memory");
    for (int i = 0; i < options.connections; i++) {
        open_connection(&connections[i], i);
        struct epoll_event event = { .events = EPOLLIN, .data.ptr = &connections[i] };
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, connections[i].fd, &event)) refuse("epoll_ctl: %s", strerror(errno));
    }
    uint64_t begin = now_ns(), measure_at = begin + (uint64_t)(options.warmup_s * (double)NS), started = 0, ended = 0;
    uint64_t measure_end = 0, last_answer = begin, last_count = 0;
    Schedule server_before = { 0 }, self_before = { 0 }, server = { 0 }, self = { 0 };
    for (int i = 0; i < options.connections; i++) {
        for (uint32_t n = 0; n < (uint32_t)options.outstanding; n++)
            if (!options.count || (long long)requests_sent + connections[i].ready_count < options.count)
                make_ready(&connections[i], n);
        flush(epoll, &connections[i]);
    }
    for (;;) {
        uint64_t now = now_ns();
        if (!started && (now >= measure_at || options.count)) {
            if (options.pid) server_before = schedule_of(options.pid);
            self_before = schedule_of(getpid());
            measuring = 1;
            started = now_ns();
            measure_end = started + (uint64_t)(options.seconds * (double)NS);
        } else if (started && !ended && (options.count ? (long long)acknowledged >= options.count : now >= measure_end)) {
            ended = now;
            measuring = 0, stopping = 1;
            if (options.pid) server = since(schedule_of(options.pid), server_before);
            self = since(schedule_of(getpid()), self_before);
        }
        if (stopping && !all_outstanding(connections)) break;
        if (acknowledged != last_count) last_count = acknowledged, last_answer = now;
        if (now > last_answer + 10 * NS) refuse("no answer for 10 s, %u outstanding", all_outstanding(connections));
        struct epoll_event events[256];
        int count = epoll_wait(epoll, events, 256, 100);
        if (count < 0 && errno != EINTR) refuse("epoll_wait: %s", strerror(errno));
        for (int i = 0; i < count; i++) {
            Connection *connection = events[i].data.ptr;
            if (events[i].events & (EPOLLERR | EPOLLHUP)) refuse("connection lost");
            if (events[i].events & EPOLLIN) receive(connection);
            flush(epoll, connection);
        }
    }
    if (stopping && options.count && (long long)requests_sent != options.count && !pulling())
        refuse("sent %lu, wanted %lld", requests_sent, options.count);
    print_result(ended - started, server, self);
}

/* ---- wake: how long after a send a held pull is answered ---- */

static void write_all(int fd, const uint8_t *at, size_t bytes) {
    while (bytes) {
        ssize_t written = write(fd, at, bytes);
        if (written <= 0) refuse("write: %s", strerror(errno));
        at += written, bytes -= (size_t)written;
    }
}

static uint32_t read_frame(int fd, uint8_t *into) {
    uint32_t got = 0, wanted = 8;
    while (got < wanted) {
        ssize_t bytes = recv(fd, into + got, wanted - got, 0);
        if (bytes <= 0) refuse("recv: %s", bytes ? strerror(errno) : "closed");
        got += (uint32_t)bytes;
        if (got >= 8 && wanted == 8) wanted = get32(into) + 4;
        if (wanted < 8 || wanted > FRAME_BYTES_MAX) refuse("frame of %u bytes", wanted);
    }
    return wanted;
}

static void run_wake(void) {
    Connection consumer = { .fd = connect_to_server() }, producer = { .fd = connect_to_server() };
    uint8_t *frames = malloc(2 * HEAD_BYTES_MAX + INLINE_BODY_MAX);
    Slot pull = { .frame = frames }, send = { .frame = frames + HEAD_BYTES_MAX };
    options.outstanding = 1;
    consumer.slots = &pull, producer.slots = &send;
    if (options.body_bytes > INLINE_BODY_MAX) refuse("wake takes bodies up to %d bytes", INLINE_BODY_MAX);
    build_frame(&send, SEND_MESSAGE_V2, queues[0].id, 0, 0, (uint32_t)options.body_bytes, 1);
    pull.queue_offset = queues[0].max_offset;
    Schedule server_before = options.pid ? schedule_of(options.pid) : (Schedule){ 0 };
    Schedule self_before = schedule_of(getpid());
    uint64_t started = now_ns();
    for (long long i = 0, warm = 100; i < options.count + warm; i++) {
        Answer answer;
        const uint8_t *body_at;
        uint32_t body_size, number;
        struct timespec pause = { 0, 1000000 };     /* the pace: 1,000/s at most, and the pull is held by then */
        build_frame(&pull, PULL_MESSAGE, queues[0].id, pull.queue_offset, 15000, 0, 0);
        patch_opaque(&pull, 0);
        patch_opaque(&send, 0);
        patch_key(&send);
        pull.outstanding = send.outstanding = 1;
        write_all(consumer.fd, pull.frame, pull.frame_bytes);
        nanosleep(&pause, NULL);
        char early;
        if (recv(consumer.fd, &early, 1, MSG_PEEK | MSG_DONTWAIT) > 0) refuse("the pull was answered before the send");
        uint64_t at_ns = now_ns();
        write_all(producer.fd, send.frame, send.frame_bytes);
        uint32_t bytes = read_frame(consumer.fd, shared);
        uint64_t woken_ns = now_ns();
        read_answer(&consumer, shared, bytes, &answer, &body_at, &body_size);
        slot_of(&consumer, answer.opaque, &number);
        int messages = walk_records(body_at, body_size, &pull);
        if (messages != 1) refuse("woken with %d messages", messages);
        bytes = read_frame(producer.fd, shared);
        read_answer(&producer, shared, bytes, &answer, &body_at, &body_size);
        slot_of(&producer, answer.opaque, &number);
        if (!answer.has_queue_offset) refuse("answer without queueOffset");
        acknowledged++, requests_sent++, pull.queue_offset++;
        if (i >= warm) record_latency(woken_ns - at_ns), measured++, responses_measured++;
    }
    uint64_t ended = now_ns();
    Schedule server = options.pid ? since(schedule_of(options.pid), server_before) : (Schedule){ 0 };
    print_result(ended - started, server, since(schedule_of(getpid()), self_before));
}

/* ---- command line ---- */

static void parse_ranges(char *text) {          /* MIN:MAX of queue 0, of queue 1, ... separated by commas */
    int count = 0;
    for (char *part = strtok(text, ","); part; part = strtok(NULL, ","), count++) {
        long long low, high;
        if (count == QUEUES_MAX || sscanf(part, "%lld:%lld", &low, &high) != 2) refuse("bad range %s", part);
        queues[count] = (Queue){ low, high, low, count };
    }
    options.queue_count = count;
}

static void parse_options(int argc, char **argv) {
    char *ranges = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i];
        char *value = argv[i + 1];
        if (!strcmp(name, "--host")) options.host = value;
        else if (!strcmp(name, "--port")) options.port = atoi(value);
        else if (!strcmp(name, "--mode")) options.mode = value;
        else if (!strcmp(name, "--header")) options.binary = !strcmp(value, "binary");
        else if (!strcmp(name, "--connections")) options.connections = atoi(value);
        else if (!strcmp(name, "--outstanding")) options.outstanding = atoi(value);
        else if (!strcmp(name, "--body")) options.body_bytes = atoi(value);
        else if (!strcmp(name, "--topic")) options.topic = value;
        else if (!strcmp(name, "--group")) options.group = value;
        else if (!strcmp(name, "--queues")) options.queue_count = atoi(value);
        else if (!strcmp(name, "--ranges")) ranges = value;
        else if (!strcmp(name, "--warmup")) options.warmup_s = atof(value);
        else if (!strcmp(name, "--seconds")) options.seconds = atof(value);
        else if (!strcmp(name, "--count")) options.count = atoll(value);
        else if (!strcmp(name, "--core")) options.core = atoi(value);
        else if (!strcmp(name, "--pid")) options.pid = atoi(value);
        else refuse("unknown option %s", name);
    }
    if (argc % 2 == 0) refuse("option %s without a value", argv[argc - 1]);
    if (ranges) parse_ranges(ranges);
    else for (int i = 0; i < options.queue_count && i < QUEUES_MAX; i++) queues[i].id = i;
    int known = !strcmp(options.mode, "send") || !strcmp(options.mode, "pull") || !strcmp(options.mode, "wake");
    if (!known) refuse("unknown mode %s", options.mode);
    if (!options.port || options.connections < 1 || options.outstanding < 1 || options.outstanding > 1 << 16
        || options.body_bytes < 1 || options.body_bytes > 4 << 20 || options.queue_count < 1
        || options.queue_count > QUEUES_MAX || strlen(options.topic) > 127 || strlen(options.group) > 255)
        refuse("a value is missing or out of range");
    if (options.mode[0] != 's' && !ranges) refuse("%s needs --ranges", options.mode);
    if (options.mode[0] == 'w' && options.count < 1) refuse("wake needs --count");
    for (int i = 0; pulling() && i < options.queue_count; i++)
        if (queues[i].max_offset - queues[i].min_offset < PULL_COUNT) refuse("queue %d holds less than one pull", i);
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    prctl(PR_SET_PDEATHSIG, 9);
    if (options.core >= 0) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET(options.core, &cores);
        if (sched_setaffinity(0, sizeof cores, &cores)) refuse("cannot run on core %d", options.core);
    }
    shared = malloc(SHARED_BYTES);
    body = malloc((size_t)options.body_bytes);
    if (!shared || !body) refuse("out of memory");
    for (int i = 0; i < options.body_bytes; i++) body[i] = (uint8_t)('a' + (i * 7 + i / 26) % 26);
    snprintf(key_text, sizeof key_text, "%08X%08X%016X", (unsigned)getpid(), (unsigned)time(NULL), 0);
    if (options.mode[0] == 'w') run_wake();
    else run_load();
    return 0;
}
