/* fuzz_snapshot.c - any bytes as the file of a saved session: refused with a sentence and nothing
 * kept, or a session that goes on.
 *
 * Checksums would keep every change of a file from going further than its head, so the input is
 * also taken as a head alone: its fields, where they do not contradict each other, with this
 * engine's fingerprints, sealed anew, and followed by parts of the sizes it says, made of the rest
 * of the input and of zeros. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "core/hash.h"
#include "engine/fingerprint.h"
#include "engine/saved.h"
#include "engine/session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LARGEST = 1 << 20 };

typedef struct {
    kk_engine *engine;    /* with a drafter */
    kk_engine *restoring; /* with a projection */
    char path[64];
    int fd;
} rig;

static rig one;

static void remove_file(void) { unlink(one.path); }

static kk_engine *open_engine(const char *model, const char *drafter, const char *projection) {
    kk_engine *e;
    const kk_engine_opts opts = {.synthetic = model,
                                 .drafter = drafter,
                                 .projection = projection,
                                 .threads = 1,
                                 .no_pin = true};
    if (kk_engine_open(&e, &opts, NULL) != KK_OK) abort();
    return e;
}

static rig *the_rig(void) {
    if (one.engine) return &one;
    memcpy(one.path, "/tmp/kakeya-fuzz-XXXXXX", 24);
    one.fd = mkstemp(one.path);
    atexit(remove_file);
    if (one.fd < 0) abort();
    one.engine = open_engine("tiny:f32:1", "synthetic", NULL);
    one.restoring = open_engine("tiny:f32:3", NULL, "synthetic:32");
    return &one;
}

static int64_t kv_bytes(const kk_engine *e) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(e, bytes);
    return bytes[KK_MEM_KV_SLIDING] + bytes[KK_MEM_KV_FULL] + bytes[KK_MEM_KV_DRAFTER] +
           bytes[KK_MEM_KV_LATENTS];
}

/* Rows of any bits may be NaN. */
static void need(kk_status st) {
    if (st != KK_OK && st != KK_ENUMERIC) abort();
}

static void go_on(kk_session *s) {
    const kk_generate_opts how = {.max_tokens = 2, .ignore_eos = true};
    const float *row;
    if (s->len == 0) return;
    if (s->len < s->ctx) need(kk_generate(s, &how, NULL, NULL, NULL, NULL));
    need(kk_session_logits(s, &row, NULL));
}

static void try_file(rig *r, kk_engine *e, const uint8_t *data, size_t size) {
    kk_session *s;
    kk_saved_info info;
    kk_err err = {0};
    bool exact;
    if (ftruncate(r->fd, 0) != 0 || pwrite(r->fd, data, size, 0) != (ssize_t)size) abort();
    const kk_status seen = kk_saved_inspect(r->path, &info, &err);
    if (seen != KK_OK && err.msg[0] == '\0') abort();
    err.msg[0] = '\0';
    const kk_status st = kk_session_load(&s, e, r->path, NULL, &exact, &err);
    if ((st == KK_OK) != (s != NULL) || (st != KK_OK && err.msg[0] == '\0')) abort();
    if (st == KK_OK && seen != KK_OK) abort();
    if (s) go_on(s);
    kk_session_free(s);
    if (kv_bytes(e) != 0) abort();
}

/* Puts one part and its seal at *at; its bytes come from the input while there are any. */
static void put_part(uint8_t *file, size_t *at, int part, size_t chunk, size_t n, kk_span *from) {
    uint64_t seal = KK_HASH_START + (uint64_t)part;
    const size_t bytes = chunk * n, given = from->size < bytes ? from->size : bytes;
    if (bytes == 0) return;
    if (given) memcpy(file + *at, from->base, given);
    *from = (kk_span){from->base + given, from->size - given};
    for (size_t i = 0; i < n; i++) seal = kk_hash_bytes(seal, file + *at + i * chunk, chunk);
    memcpy(file + *at + bytes, &seal, sizeof seal);
    *at += bytes + sizeof seal;
}

static size_t part_sum(const kk_saved_cache *c) {
    size_t sum = 0;
    for (int k = 0; k < KK_KINDS; k++) {
        const int64_t pages = c->kind[k].pages, bytes = c->kind[k].page_bytes,
                      sink = c->kind[k].sink_bytes;
        if (pages < 0 || bytes < 0 || pages > LARGEST || bytes > LARGEST || sink < 0 ||
            sink > LARGEST)
            return LARGEST;
        sum += (size_t)(pages * bytes) + 8 + (size_t)sink + 8 + (size_t)pages / 8 + 9;
    }
    return sum;
}

/* The page table from the input, and as many pages as it leaves to be read. */
static void put_cache(uint8_t *file, size_t *at, int part, const kk_saved_cache *c, kk_span *from) {
    const size_t table = *at;
    size_t bytes = 0, bit = 0;
    for (int k = 0; k < KK_KINDS; k++) bytes += ((size_t)c->kind[k].pages + 7) / 8;
    put_part(file, at, part, bytes, 1, from);
    for (int k = 0; k < KK_KINDS; k++) {
        int64_t fresh = 0;
        for (int64_t i = 0; i < c->kind[k].pages; i++)
            fresh += !(file[table + bit + (size_t)i / 8] >> (i % 8) & 1);
        bit += ((size_t)c->kind[k].pages + 7) / 8;
        put_part(file, at, part + 1 + 2 * k, (size_t)c->kind[k].page_bytes, (size_t)fresh, from);
        put_part(file, at, part + 2 + 2 * k, (size_t)c->kind[k].sink_bytes, 1, from);
    }
}

/* One state, without a proposer's: the drafter's rows are read by what reads the verifier's. */
static void try_mended(rig *r, int32_t format, const uint8_t *data, size_t size) {
    kk_saved_head h;
    uint8_t head[KK_SAVED_HEAD_MAX];
    if (size < kk_saved_bytes(format) || !kk_saved_decode(&h, format, data)) return;
    const size_t rest = part_sum(&h.verifier) + LARGEST / 64;
    if (h.len > 8192 || h.vocab > 8192 || rest >= LARGEST) return;
    kk_engine *e = h.keeps.projection ? r->restoring : r->engine;
    h.fingerprint = kk_engine_fingerprint(e);
    if (h.keeps.projection) h.keeps.projection = kk_engine_projection_fingerprint(e);
    h.drafter = 0;
    h.proposer[0] = '\0';
    h.n_points = 0;
    if (h.checkpoint_bytes == 0) h.checkpoint_bytes = 1;
    uint8_t *file = calloc(1, sizeof head + rest + (size_t)h.len * 4 + (size_t)h.vocab * 4 + 64);
    if (!file) return;
    const size_t start = kk_saved_bytes(KK_SAVED_FORMAT);
    size_t at = start;
    kk_span from = {data + kk_saved_bytes(format), size - kk_saved_bytes(format)};
    put_part(file, &at, 0, (size_t)h.len * 4, 1, &from);
    const int32_t said[] = {h.len, h.settled};
    kk_span length = {(const uint8_t *)said, sizeof said};
    put_part(file, &at, 256, sizeof said, 1, &length);
    put_part(file, &at, 257, h.settled ? (size_t)h.vocab * 4 : 0, 1, &from);
    put_cache(file, &at, 258, &h.verifier, &from);
    h.body_bytes = (int64_t)(at - start);
    kk_saved_encode(&h, head);
    memcpy(file, head, start);
    try_file(r, e, file, at);
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rig *r = the_rig();
    try_file(r, r->engine, data, size);
    for (int32_t format = KK_SAVED_OLDEST; format <= KK_SAVED_FORMAT; format++)
        try_mended(r, format, data, size);
    return 0;
}
