/* Closed-loop load on one RocketMQ broker: one thread, epoll, every answer checked, one JSON object on stdout.
 *
 * Cost per message at 8 x 64 x 1 KiB: one patched frame (10 + 16 bytes), no copy of it, no allocation, 1/64 of a
 * writev and of a recv. An answer is parsed in full when its layout is new (and every 64th time), else its fields
 * are compared where the last full parse found them. Wire: docs/formats.md "Frame", "Record"; fields: RocketMQ's
 * SendMessageRequestHeaderV2, PullMessageRequestHeader. A message is counted when its answer arrived inside the
 * measured window.
 *
 *   modes   send   SEND_MESSAGE_V2 (310); the echo server takes the same frames
 *           pull   PULL_MESSAGE (11), 32 at a time, over queues filled before; every record of the body is walked
 *           wake   one held pull, one send at a time: time from the send to the pull's answer
 */
#include "answers.h"
#include "measuring.h"
#include "requests.h"

/* ---- the loop ---- */

static int pulling(void) { return options.mode[0] == 'p'; }

/* With --rate, a slot that is free waits here for its turn; its latency counts from when its turn was due.
   Who is due is looked for without a pause, which takes a core; with --tick every so many microseconds,
   which leaves the core to others that run there; answers are read then, too. */
typedef struct { Connection *connection; uint32_t number; } Free;
static Free *free_slots;
static uint32_t free_head, free_count, free_room;
static uint64_t due_ns, interval_ns;

static uint64_t requests_wanted(void) { return options.count ? (uint64_t)options.count : UINT64_MAX; }

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
    requests_made++;
    uint32_t end = connection->ready_head + connection->ready_count++;
    connection->ready[end % (uint32_t)options.outstanding] = number;
}

static void release(Connection *connection, uint32_t number) {
    if (interval_ns) free_slots[(free_head + free_count++) % free_room] = (Free){ connection, number };
    else make_ready(connection, number);
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
            if (!interval_ns) slot->sent_ns = at_ns;
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
            uint32_t at = (connection->ready_head + i) % (uint32_t)options.outstanding;
            Slot *slot = &connection->slots[connection->ready[at]];
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
    if (!stopping && requests_made < requests_wanted())
        release(connection, number);
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

static void send_what_is_due(int epoll, Connection *connections, uint64_t at_ns) {
    int any = 0;
    for (; free_count && due_ns <= at_ns && !stopping; due_ns += interval_ns, free_count--) {
        Free next = free_slots[free_head];
        free_head = (free_head + 1) % free_room;
        make_ready(next.connection, next.number);
        next.connection->slots[next.number].sent_ns = due_ns;
        any = 1;
    }
    for (int i = 0; any && i < options.connections; i++)
        if (connections[i].ready_count) flush(epoll, &connections[i]);
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

static void print_result(uint64_t wall_ns, Schedule server, Schedule self, Machine before, Machine after) {
    double seconds = (double)wall_ns / (double)NS;
    printf("{\"messages\":%lu,\"responses\":%lu,\"acknowledged_total\":%lu,\"requests_total\":%lu,\"seconds\":%.6f,",
           measured, responses_measured, acknowledged, requests_sent, seconds);
    printf("\"rate\":%.1f,\"body_bytes\":%lu,\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f,",
           (double)measured / seconds, body_bytes_measured, latency_us(.5), latency_us(.99), latency_us(.999),
           latency_us(1));
    printf("\"answers_json\":%lu,\"answers_binary\":%lu,\"full_parses\":%lu,", answers_json, answers_binary,
           full_parses);
    printf("\"server_cpu_ns\":%lu,\"server_wait_ns\":%lu,\"server_threads\":%lu,", server.on_cpu_ns, server.wait_ns,
           server.tasks);
    uint64_t busy_ns = after.busy_ns - before.busy_ns, ours_ns = server.on_cpu_ns + self.on_cpu_ns;
    printf("\"others_cpu_share\":%.4f,\"stolen_share\":%.4f,",
           share(busy_ns > ours_ns ? busy_ns - ours_ns : 0, wall_ns),
           share(after.stolen_ns - before.stolen_ns, wall_ns));
    printf("\"server_cpu_share\":%.4f,\"server_wait_share\":%.4f,\"generator_cpu_share\":%.4f,"
           "\"generator_wait_share\":%.4f}\n", share(server.on_cpu_ns, wall_ns), share(server.wait_ns, wall_ns),
           share(self.on_cpu_ns, wall_ns), share(self.wait_ns, wall_ns));
}

static Schedule since(Schedule after, Schedule before) {
    if (after.on_cpu_ns < before.on_cpu_ns) refuse("threads ended during the run: the server's CPU time is unknown");
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
    Machine machine_before = { 0 }, machine_after = { 0 };
    if (options.rate > 0) {
        free_room = (uint32_t)(options.connections * options.outstanding);
        free_slots = calloc(free_room, sizeof *free_slots);
        interval_ns = (uint64_t)((double)NS / options.rate);
        due_ns = begin;
    }
    struct timespec tick = { 0, options.tick_us * 1000L };
    for (int i = 0; i < options.connections; i++) {
        for (uint32_t n = 0; n < (uint32_t)options.outstanding; n++)
            if (requests_made < requests_wanted())
                release(&connections[i], n);
        flush(epoll, &connections[i]);
    }
    for (;;) {
        uint64_t now = now_ns();
        if (!started && (now >= measure_at || options.count)) {
            if (options.pid) server_before = schedule_of(options.pid);
            self_before = schedule_of(getpid());
            machine_before = machine_now();
            measuring = 1;
            started = now_ns();
            measure_end = started + (uint64_t)(options.seconds * (double)NS);
        } else if (started && !ended && (options.count ? requests_sent == requests_wanted() && !all_outstanding(connections)
                                                       : now >= measure_end)) {
            ended = now;
            measuring = 0, stopping = 1;
            if (options.pid) server = since(schedule_of(options.pid), server_before);
            self = since(schedule_of(getpid()), self_before);
            machine_after = machine_now();
        }
        if (stopping && !all_outstanding(connections)) break;
        if (acknowledged != last_count) last_count = acknowledged, last_answer = now;
        if (now > last_answer + 10 * NS) refuse("no answer for 10 s, %u outstanding", all_outstanding(connections));
        struct epoll_event events[256];
        if (interval_ns) send_what_is_due(epoll, connections, now);
        if (interval_ns && options.tick_us > 0 && !stopping) nanosleep(&tick, NULL);
        int count = epoll_wait(epoll, events, 256, interval_ns && !stopping ? 0 : 100);
        if (count < 0 && errno != EINTR) refuse("epoll_wait: %s", strerror(errno));
        for (int i = 0; i < count; i++) {
            Connection *connection = events[i].data.ptr;
            if (events[i].events & (EPOLLERR | EPOLLHUP)) refuse("connection lost");
            if (events[i].events & EPOLLIN) receive(connection);
            flush(epoll, connection);
        }
    }
    print_result(ended - started, server, self, machine_before, machine_after);
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
    Machine machine_before = machine_now();
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
    print_result(ended - started, server, since(schedule_of(getpid()), self_before), machine_before, machine_now());
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
        else if (!strcmp(name, "--rate")) options.rate = atof(value);
        else if (!strcmp(name, "--tick")) options.tick_us = atoi(value);
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
    if (options.tick_us && (options.tick_us < 0 || options.tick_us > 999999 || options.rate <= 0))
        refuse("--tick takes 1 to 999999 us, beside --rate");
    if (options.mode[0] != 's' && !ranges) refuse("%s needs --ranges", options.mode);
    if (options.mode[0] == 'w' && options.count < 1) refuse("wake needs --count");
    for (int i = 0; pulling() && i < options.queue_count; i++)
        if (queues[i].max_offset - queues[i].min_offset < PULL_COUNT) refuse("queue %d holds less than one pull", i);
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    prctl(PR_SET_PDEATHSIG, 9);
    if (options.tick_us) prctl(PR_SET_TIMERSLACK, 1);
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
