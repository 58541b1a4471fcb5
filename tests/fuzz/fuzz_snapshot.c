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

#include "decode/hash.h"
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

static void go_on(kk_session *s) {
    const kk_generate_opts how = {.max_tokens = 2, .ignore_eos = true};
    const float *row;
    if (s->len == 0) return;
    if (s->len < s->ctx && kk_generate(s, &how, NULL, NULL, NULL, NULL) != KK_OK) abort();
    if (kk_session_logits(s, &row, NULL) != KK_OK) abort();
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
        sum += (size_t)(pages * bytes) + 8 + (size_t)sink + 8;
    }
    return sum;
}

static void put_cache(uint8_t *file, size_t *at, int part, const kk_saved_cache *c, kk_span *from) {
    for (int k = 0; k < KK_KINDS; k++) {
        put_part(file, at, part + 2 * k, (size_t)c->kind[k].page_bytes, (size_t)c->kind[k].pages,
                 from);
        put_part(file, at, part + 2 * k + 1, (size_t)c->kind[k].sink_bytes, 1, from);
    }
}

static void try_mended(rig *r, const uint8_t *data, size_t size) {
    kk_saved_head h;
    uint8_t head[KK_SAVED_HEAD_MAX];
    if (size < kk_saved_bytes() || !kk_saved_decode(&h, data)) return;
    const size_t rest = part_sum(&h.verifier) + part_sum(&h.context);
    if (h.len > 8192 || h.vocab > 8192 || rest >= LARGEST) return;
    kk_engine *e = h.keeps.projection ? r->restoring : r->engine;
    h.fingerprint = kk_engine_fingerprint(e);
    if (h.keeps.projection) h.keeps.projection = kk_engine_projection_fingerprint(e);
    if (h.drafter) h.drafter = kk_engine_drafter_fingerprint(r->engine);
    size_t at = kk_saved_encode(&h, head);
    uint8_t *file = calloc(1, at + rest + (size_t)h.len * 4 + (size_t)h.vocab * 4 + 16);
    if (!file) return;
    memcpy(file, head, at);
    kk_span from = {data + kk_saved_bytes(), size - kk_saved_bytes()};
    put_part(file, &at, 0, (size_t)h.len * 4, 1, &from);
    put_part(file, &at, 1, h.settled ? (size_t)h.vocab * 4 : 0, 1, &from);
    put_cache(file, &at, 2, &h.verifier, &from);
    put_cache(file, &at, 2 + 2 * KK_KINDS, &h.context, &from);
    try_file(r, e, file, at);
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rig *r = the_rig();
    try_file(r, r->engine, data, size);
    try_mended(r, data, size);
    return 0;
}
