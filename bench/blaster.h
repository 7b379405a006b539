/* What the load generator's parts share: limits, options, connections and their slots. */
#ifndef BENCH_BLASTER_H
#define BENCH_BLASTER_H

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

static struct {
    const char *host, *mode, *topic, *group;
    int port, connections, outstanding, body_bytes, binary, core, queue_count, pid, tick_us;
    double warmup_s, seconds, rate;
    long long count;
} options = { .host = "127.0.0.1", .mode = "send", .topic = "bench", .group = "bench-group", .connections = 8,
              .outstanding = 64, .body_bytes = 1024, .core = -1, .queue_count = 8, .warmup_s = 0.5, .seconds = 2 };

static Queue queues[QUEUES_MAX];
static uint8_t *body, *shared;
static uint64_t key_counter, acknowledged, measured, responses_measured, requests_made, requests_sent;
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
#endif
