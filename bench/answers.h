/* Answers: every header parsed or compared with one that was, every record of a pull's body walked. */
#ifndef BENCH_ANSWERS_H
#define BENCH_ANSWERS_H
#include "blaster.h"

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
        if (size > (uint64_t)(end - at) || size < 91)
            refuse("record of %u bytes where %ld are left", size, (long)(end - at));
        if (magic != 0xDAA320A7u && magic != 0xDAA320ABu) refuse("record magic is %08x", magic);
        if ((int)get32(at + 12) != queues[slot->queue].id) refuse("record of queue %u", get32(at + 12));
        if ((int64_t)get64(at + 20) != slot->queue_offset + count)
            refuse("queue offset %ld, wanted %ld", (long)get64(at + 20), (long)slot->queue_offset + count);
        uint32_t flags = get32(at + 36);
        const uint8_t *body_bytes_at = at + 84 + (flags & 0x10 ? 12 : 0) + (flags & 0x20 ? 12 : 0);
        uint32_t body_bytes = get32(body_bytes_at);
        if (body_bytes != (uint32_t)options.body_bytes || body_bytes + 91 > size)
            refuse("body of %u bytes, wanted %d", body_bytes, options.body_bytes);
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
#endif
