/* malformed_grpc.c - see malformed.h.
 *
 * A connection is drawn.  Either it is itself wrong (its preface, a frame, a block of headers), and
 * is one request, which the server may cut off or ignore.  Or it is right HTTP/2 with several calls
 * that are not: their messages are damaged, cut short or announced as longer than they are, the
 * calls are unknown, or the client cancels them half-way.  A call that was sent whole must end,
 * whatever with, unless the server ends the connection: by trailers, by a reset, or by a GOAWAY.
 *
 * Messages name sessions that exist, so that a message which survives its damage does work; they
 * are made anew now and then, since histories only grow. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "serving/drawn.h"
#include "serving/frames.h"
#include "serving/malformed.h"

enum { AT_ONCE = 16, CALLS = 16 /* most of a connection */, SESSIONS = 4, RENEW = 2000 };
static const double most_s = 20;     /* until a call ends that must */
static const double patience = 0.02; /* with a connection that may stay silent */

typedef enum { NOISE, PREFACE, FRAMES, HEADERS, MESSAGES, TRUNCATED, CANCELLED, UNKNOWN, WAYS } way;
static const char *const way_names[WAYS] = {"noise",    "preface",   "frames",    "headers",
                                            "messages", "truncated", "cancelled", "unknown"};

typedef struct {
    int fd;     /* -1: there is none */
    bool ended; /* by the server */
    double sent;
    uint32_t waiting; /* a bit for each call that must end; call i is stream 2 i + 1 */
    growing in;
    size_t read; /* bytes of it */
} connection;

typedef struct {
    target *server;
    uint64_t state;
    connection links[AT_ONCE];
    char ids[SESSIONS][80];
    size_t requests, connections, ways[WAYS];
    size_t trailers, resets, refused; /* calls by how they ended */
    size_t hangs, crashes;
} storm;

static uint64_t draw(storm *s) { return drawn(&s->state); }

/* ---- messages of runtime.proto ------------------------------------------------------------ */

static void add_varint(growing *out, uint64_t value) {
    for (; value >= 128; value >>= 7) growing_add(out, &(char){(char)(value | 128)}, 1);
    growing_add(out, &(char){(char)value}, 1);
}

static void add_number(growing *out, unsigned field, uint64_t value) {
    add_varint(out, field << 3);
    add_varint(out, value);
}

static void add_bytes(growing *out, unsigned field, const void *bytes, size_t n) {
    add_varint(out, field << 3 | 2);
    add_varint(out, n);
    growing_add(out, bytes, n);
}

static void add_text(growing *out, unsigned field, const char *text) {
    add_bytes(out, field, text, strlen(text));
}

static void add_float(growing *out, unsigned field, float value) {
    add_varint(out, field << 3 | 5);
    growing_add(out, &value, sizeof value); /* little-endian, as the machines that run this are */
}

static void fill_create(storm *s, growing *out) {
    growing options = {0};
    add_number(&options, 1, 16 + draw(s) % 100);
    add_number(&options, 2, draw(s) % 6);
    add_number(&options, 8, draw(s) % 5);
    add_text(out, 1, "a label");
    add_bytes(out, 2, "\1\2", 2);
    add_bytes(out, 3, options.text, options.len);
    growing_free(&options);
}

static void fill_tokens(storm *s, growing *out) {
    const char tokens[] = {5, 6, 7, (char)(draw(s) % 128)};
    add_bytes(out, 2, tokens, sizeof tokens);
}

static void fill_text(storm *s, growing *out) {
    if (draw(s) % 2)
        add_text(out, 2, "def add(");
    else
        add_text(out, 3, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
}

static void fill_generate(storm *s, growing *out) {
    add_number(out, 2, 1 + draw(s) % 4);
    add_number(out, 3, draw(s));
    add_float(out, 4, 0.5f);
    add_float(out, 5, 0.9f);
    add_number(out, 12, 1);
    add_text(out, 13, "x");
}

static void fill_fork(storm *s, growing *out) { add_number(out, 2 + draw(s) % 2, draw(s) % 3); }

typedef struct {
    const char *path;
    void (*fill)(storm *s, growing *out); /* NULL: it has an id and no more */
} method;

#define PATH(call) "/kakeya.v1.RuntimeService/" call
static const method methods[] = {
    {PATH("CreateSession"), fill_create}, {PATH("AppendTokens"), fill_tokens},
    {PATH("AppendText"), fill_text},      {PATH("Generate"), fill_generate},
    {PATH("ForkSession"), fill_fork},     {PATH("CloseSession"), NULL},
    {PATH("GetSessionInfo"), NULL},       {PATH("GetHistory"), NULL},
    {PATH("ListSessions"), NULL},         {"/grpc.health.v1.Health/Check", NULL},
};
enum { METHODS = sizeof methods / sizeof *methods };

static void write_message(storm *s, const method *m, growing *out) {
    if (m->fill != fill_create) add_text(out, 1, s->ids[draw(s) % SESSIONS]);
    if (m->fill) m->fill(s, out);
}

/* ---- calls --------------------------------------------------------------------------------- */

static void add_fields(growing *block, const char *verb, const char *path, const char *type) {
    const char *const fields[][2] = {{":method", verb},      {":scheme", "http"},
                                     {":path", path},        {":authority", "localhost"},
                                     {"content-type", type}, {"te", "trailers"}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        frames_field(block, fields[i][0], fields[i][1], strlen(fields[i][1]));
}

static void open_call(growing *out, uint32_t stream, const char *path) {
    growing block = {0};
    add_fields(&block, "POST", path, "application/grpc");
    frames_headers(out, stream, &block);
    growing_free(&block);
}

/* A message behind the five bytes that announce it: whether it is compressed, and its length. */
static void add_message(growing *out, uint32_t stream, const growing *message, int compressed,
                        uint32_t says, bool last) {
    const unsigned char head[5] = {(unsigned char)compressed, (unsigned char)(says >> 24),
                                   (unsigned char)(says >> 16), (unsigned char)(says >> 8),
                                   (unsigned char)says};
    growing all = {0};
    growing_add(&all, head, sizeof head);
    growing_add(&all, message->text, message->len);
    frames_add(out, FRAME_DATA, last ? FRAME_END_STREAM : 0, stream, all.text, all.len);
    growing_free(&all);
}

static void damaged_call(storm *s, growing *out, uint32_t stream) {
    const method *m = &methods[draw(s) % METHODS];
    growing message = {0};
    growing_add(&message, "", 0);
    write_message(s, m, &message);
    drawn_damage(&s->state, &message, 0);
    open_call(out, stream, m->path);
    add_message(out, stream, &message, 0, (uint32_t)message.len, true);
    growing_free(&message);
}

/* The message ends before it should, is longer than was said, is a compressed one that is none, or
 * is said to be larger than any may be. */
static void truncated_call(storm *s, growing *out, uint32_t stream) {
    const method *m = &methods[draw(s) % METHODS];
    growing message = {0};
    growing_add(&message, "", 0);
    write_message(s, m, &message);
    const uint32_t len = (uint32_t)message.len;
    const uint32_t says[] = {len, len + 1 + (uint32_t)draw(s) % 1000, len / 2, 0xffffffff,
                             1u << 30};
    const uint64_t which = draw(s) % 5;
    if (draw(s) % 2) message.len = draw(s) % (message.len + 1);
    open_call(out, stream, m->path);
    add_message(out, stream, &message, which == 0, says[which], true);
    growing_free(&message);
}

/* Cancelled before its message, within it, or behind it. */
static void cancelled_call(storm *s, growing *out, uint32_t stream) {
    const method *m = &methods[draw(s) % METHODS];
    const uint64_t when = draw(s) % 3;
    growing message = {0};
    growing_add(&message, "", 0);
    write_message(s, m, &message);
    const uint32_t len = (uint32_t)message.len;
    if (when == 1) message.len /= 2;
    open_call(out, stream, m->path);
    if (when > 0) add_message(out, stream, &message, 0, len, when == 2);
    frames_add(out, FRAME_RST_STREAM, 0, stream, "\0\0\0\10", 4);
    growing_free(&message);
}

static void unknown_call(storm *s, growing *out, uint32_t stream) {
    static const char *const heads[][3] = {
        {"POST", PATH("NoSuchCall"), "application/grpc"},
        {"POST", "/no.such.Service/Call", "application/grpc"},
        {"POST", "no-slash", "application/grpc"},
        {"POST", "", "application/grpc"},
        {"GET", PATH("Generate"), "application/grpc"},
        {"BREW", PATH("Generate"), "application/grpc"},
        {"POST", PATH("Generate"), "text/plain"},
        {"POST", PATH("Generate"), "application/grpc+json"},
    };
    const char *const *h = heads[draw(s) % (sizeof heads / sizeof *heads)];
    growing block = {0}, message = {0};
    growing_add(&message, "", 0);
    write_message(s, &methods[draw(s) % METHODS], &message);
    add_fields(&block, h[0], h[1], h[2]);
    frames_headers(out, stream, &block);
    add_message(out, stream, &message, 0, (uint32_t)message.len, true);
    growing_free(&block);
    growing_free(&message);
}

/* ---- connections that are wrong ------------------------------------------------------------ */

static void wrong_preface(storm *s, growing *out) {
    frames_open(out);
    open_call(out, 1, methods[0].path);
    switch (draw(s) % 3) {
    case 0: out->len = 1 + draw(s) % 24; break;
    case 1: out->text[draw(s) % 24] ^= (char)(1 + draw(s) % 255); break;
    default: /* settings must be the first frame */ out->text[24 + 3] = (char)draw(s);
    }
}

/* Frames that no client may send (RFC 9113 6), behind a call that is right. */
static void wrong_frame(storm *s, growing *out) {
    static const struct {
        uint32_t says, has, stream;
        int type, flags;
    } wrong[] = {
        {5, 5, 0, FRAME_DATA, 0},
        {1, 1, 1, FRAME_DATA, FRAME_PADDED},
        {0xffffff, 300, 1, FRAME_DATA, 0},
        {1, 1, 0, FRAME_HEADERS, FRAME_END_HEADERS},
        {1, 1, 2, FRAME_HEADERS, FRAME_END_HEADERS},
        {40, 40, 3, FRAME_HEADERS, 0},
        {4, 4, 1, FRAME_PRIORITY, 0},
        {4, 4, 99, FRAME_RST_STREAM, 0},
        {3, 3, 1, FRAME_RST_STREAM, 0},
        {5, 5, 0, FRAME_SETTINGS, 0},
        {6, 6, 0, FRAME_SETTINGS, FRAME_ACK},
        {6, 6, 1, FRAME_SETTINGS, 0},
        {600, 600, 0, FRAME_SETTINGS, 0},
        {8, 8, 1, FRAME_PUSH_PROMISE, FRAME_END_HEADERS},
        {7, 7, 0, FRAME_PING, 0},
        {8, 8, 1, FRAME_PING, 0},
        {3, 3, 0, FRAME_GOAWAY, 0},
        {4, 4, 0, FRAME_WINDOW_UPDATE, 0},
        {4, 4, 1, FRAME_WINDOW_UPDATE, 0},
        {3, 3, 0, FRAME_WINDOW_UPDATE, 0},
        {1, 1, 1, FRAME_CONTINUATION, FRAME_END_HEADERS},
        {9, 9, 0x7fffffff, 0x55, 0xff},
    };
    const size_t i = draw(s) % (sizeof wrong / sizeof *wrong);
    growing payload = {0};
    drawn_noise(&s->state, &payload, wrong[i].has);
    frames_head(out, wrong[i].says, wrong[i].type, wrong[i].flags, wrong[i].stream);
    growing_add(out, payload.text, payload.len);
    growing_free(&payload);
}

static void wrong_frames(storm *s, growing *out) {
    frames_open(out);
    const size_t from = out->len;
    damaged_call(s, out, 1);
    if (draw(s) % 2)
        wrong_frame(s, out);
    else
        drawn_damage(&s->state, out, from);
}

/* More bytes of metadata than are allowed, or fields that no decoder can make sense of. */
static void wrong_headers(storm *s, growing *out) {
    static const char *const broken[] = {
        "\x80",                     /* the field with index 0 */
        "\xff\xff\xff\xff\xff\x7f", /* an index behind any table */
        "\x3f\xff\xff\xff\x7f",     /* a table of 256 MB */
        "\x10\x7f\xff\xff\xff\x7f"
        "a",                    /* a name longer than its block */
        "\x10\x81\xff\x81\xff", /* Huffman codes that are cut off */
        "\x10\x05"
        "a: \n\n"
        "\x01x", /* a name that is none */
    };
    growing block = {0}, value = {0};
    add_fields(&block, "POST", methods[0].path, "application/grpc");
    if (draw(s) % 2) {
        const char *field = broken[draw(s) % (sizeof broken / sizeof *broken)];
        growing_add(&block, field, strlen(field));
    } else {
        for (uint64_t n = 100 + draw(s) % 4000; n > 0; n--) growing_add(&value, "v", 1);
        for (uint64_t n = 1 + draw(s) % 40; n > 0; n--)
            frames_field(&block, "x-long", value.text, value.len);
    }
    frames_open(out);
    frames_headers(out, 1, &block);
    growing_free(&block);
    growing_free(&value);
}

/* ---- a connection -------------------------------------------------------------------------- */

/* Writes what the connection sends; the number of its requests. */
static size_t fill(storm *s, way w, growing *out, uint32_t *waiting) {
    static void (*const calls[WAYS])(storm *, growing *, uint32_t) = {[MESSAGES] = damaged_call,
                                                                      [TRUNCATED] = truncated_call,
                                                                      [CANCELLED] = cancelled_call,
                                                                      [UNKNOWN] = unknown_call};
    *waiting = 0;
    if (w == NOISE) drawn_noise(&s->state, out, 1 + draw(s) % 300);
    if (w == PREFACE) wrong_preface(s, out);
    if (w == FRAMES) wrong_frames(s, out);
    if (w == HEADERS) wrong_headers(s, out);
    if (!calls[w]) return 1;
    const uint32_t n = 1 + (uint32_t)draw(s) % CALLS;
    frames_open(out);
    for (uint32_t i = 0; i < n; i++) calls[w](s, out, 2 * i + 1);
    if (w != CANCELLED) *waiting = (1u << n) - 1;
    return n;
}

static bool start_link(storm *s, connection *l) {
    const way w = (way)(draw(s) % WAYS);
    growing out = {0};
    client c = {.fd = -1};
    const size_t n = fill(s, w, &out, &l->waiting);
    const bool sent = client_send_raw(&c, s->server->grpc_port, out.text, out.len);
    growing_free(&out);
    if (!sent) return false;
    l->fd = c.fd;
    l->sent = c.sent;
    l->ended = false;
    s->requests += n;
    s->ways[w] += n;
    s->connections++;
    return true;
}

static void close_link(connection *l) {
    if (l->fd >= 0) close(l->fd);
    growing_free(&l->in);
    *l = (connection){.fd = -1};
}

static size_t count_bits(uint32_t bits) { return (size_t)__builtin_popcount(bits); }

static void take_frame(storm *s, connection *l, const frame *f) {
    const uint32_t call = f->stream / 2;
    const uint32_t bit = f->stream % 2 && call < CALLS ? 1u << call : 0;
    const bool ends =
        (f->type == FRAME_HEADERS || f->type == FRAME_DATA) && f->flags & FRAME_END_STREAM;
    growing ack = {0};
    if (f->type == FRAME_GOAWAY) l->ended = true;
    if (f->type == FRAME_SETTINGS && !(f->flags & FRAME_ACK))
        frames_head(&ack, 0, FRAME_SETTINGS, FRAME_ACK, 0);
    if (f->type == FRAME_PING && !(f->flags & FRAME_ACK))
        frames_add(&ack, FRAME_PING, FRAME_ACK, 0, l->in.text + l->read + FRAME_HEAD, f->length);
    if (ack.len) (void)send(l->fd, ack.text, ack.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    growing_free(&ack);
    if (!(l->waiting & bit)) return;
    s->trailers += ends;
    s->resets += f->type == FRAME_RST_STREAM;
    if (ends || f->type == FRAME_RST_STREAM) l->waiting &= ~bit;
}

static void read_link(storm *s, connection *l) {
    char block[16 << 10];
    frame f;
    const ssize_t n = recv(l->fd, block, sizeof block, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        l->ended = true;
        return;
    }
    growing_add(&l->in, block, (size_t)n);
    while (frames_read(&l->in, l->read, &f)) {
        take_frame(s, l, &f);
        l->read += FRAME_HEAD + f.length;
    }
}

/* Whether all is said on a connection; one that says nothing has had its time some day. */
static bool is_over(storm *s, const connection *l, bool waits) {
    const double age = kk_now() - l->sent;
    if (l->ended) s->refused += count_bits(l->waiting);
    if (l->ended || (waits && l->waiting == 0)) return true;
    if (age <= (waits ? most_s : patience)) return false;
    s->hangs += waits;
    return true;
}

static size_t look(storm *s) {
    struct pollfd fds[AT_ONCE];
    bool waited[AT_ONCE];
    size_t open = 0;
    for (size_t i = 0; i < AT_ONCE; i++) {
        fds[i] = (struct pollfd){.fd = s->links[i].fd, .events = POLLIN};
        waited[i] = s->links[i].waiting != 0;
    }
    (void)poll(fds, AT_ONCE, 2);
    for (size_t i = 0; i < AT_ONCE; i++) {
        connection *l = &s->links[i];
        if (l->fd < 0) continue;
        if (fds[i].revents) read_link(s, l);
        if (is_over(s, l, waited[i]))
            close_link(l);
        else
            open++;
    }
    return open;
}

/* ---- sessions ------------------------------------------------------------------------------ */

static void delete_session(const storm *s, const char *id) {
    growing head = {0};
    client c = {.fd = -1};
    growing_printf(&head, "DELETE /v1/sessions/%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                   id);
    if (client_send_raw(&c, s->server->port, head.text, head.len))
        (void)clients_finish(&c, 1, most_s);
    client_close(&c);
    growing_free(&head);
}

/* Deletes all sessions, those that damaged messages made too, and makes a few; false: the server
 * does not answer. */
static bool renew_sessions(storm *s) {
    growing text = {0};
    bool good = client_ask(s->server->port, "/v1/sessions", NULL, &text, most_s);
    json_t *list = good ? json_loads(text.text, 0, NULL) : NULL, *one;
    size_t i;
    json_array_foreach(json_object_get(list, "data"), i, one)
        delete_session(s, json_string_value(json_object_get(one, "id")));
    json_decref(list);
    for (i = 0; good && i < SESSIONS; i++) {
        text.len = 0;
        good = client_ask(s->server->port, "/v1/sessions", "{}", &text, most_s);
        json_t *o = good ? json_loads(text.text, 0, NULL) : NULL;
        const char *id = json_string_value(json_object_get(o, "id"));
        good = id != NULL;
        if (id) snprintf(s->ids[i], sizeof s->ids[i], "%s", id);
        json_decref(o);
    }
    growing_free(&text);
    return good;
}

/* ---- all of it ----------------------------------------------------------------------------- */

static json_t *result(const storm *s, size_t warm_up, int64_t before) {
    json_t *ways = json_object();
    for (int w = 0; w < WAYS; w++)
        json_object_set_new(ways, way_names[w], json_integer((json_int_t)s->ways[w]));
    return json_pack("{s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "warm_up",
                     (json_int_t)warm_up, "requests", (json_int_t)(s->requests - warm_up),
                     "connections", (json_int_t)s->connections, "ways", ways, "trailers",
                     (json_int_t)s->trailers, "resets", (json_int_t)s->resets, "refused",
                     (json_int_t)s->refused, "crashes", (json_int_t)s->crashes, "hangs",
                     (json_int_t)s->hangs, "resident_before", (json_int_t)before, "resident_after",
                     (json_int_t)target_resident(s->server));
}

/* Fills idle links; false: the server is gone. */
static bool start_links(storm *s, size_t n) {
    for (size_t i = 0; i < AT_ONCE && s->requests < n; i++)
        if (s->links[i].fd < 0 && !start_link(s, &s->links[i]) && !target_runs(s->server))
            return false;
    return true;
}

json_t *malformed_grpc_run(target *t, size_t n, uint64_t seed) {
    storm *s = calloc(1, sizeof *s);
    int64_t before = 0;
    size_t renewed = 0, said = 10000, warm_up = MALFORMED_WARM_UPS * n;
    if (!s) return NULL;
    s->server = t;
    s->state = seed;
    for (size_t i = 0; i < AT_ONCE; i++) s->links[i].fd = -1;
    bool runs = renew_sessions(s);
    while (runs && s->requests < warm_up + n && s->hangs < AT_ONCE) {
        const bool due = s->requests >= renewed + RENEW;
        runs = due || start_links(s, warm_up + n);
        if (look(s) == 0 && due) {
            runs = renew_sessions(s);
            renewed = s->requests;
        }
        if (!before && s->requests >= warm_up) {
            before = target_resident(t);
            warm_up = s->requests;
        }
        for (; s->requests >= said; said += 10000) printf("%zu malformed calls\n", said);
    }
    while (look(s) > 0) continue;
    s->crashes += !runs || !target_runs(t) || !renew_sessions(s);
    json_t *o = result(s, before ? warm_up : s->requests, before);
    free(s);
    return o;
}
