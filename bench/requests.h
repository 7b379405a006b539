/* Request frames: built once per slot, patched per message. Wire: docs/formats.md "Frame"; fields: RocketMQ's
 * SendMessageRequestHeaderV2, PullMessageRequestHeader. */
#ifndef BENCH_REQUESTS_H
#define BENCH_REQUESTS_H
#include "blaster.h"

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
#endif
