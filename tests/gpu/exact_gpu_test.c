/* exact_gpu_test.c - what the engine computes for one text, written to files for exact.py, which
 * holds it against transformers.
 *
 *   exact_gpu_test FOLDER TOKENS OUT DEVICE ROWS GROUP
 *
 * TOKENS holds int32 ids.  Of the last ROWS of them it writes OUT.hidden, float32
 * [layers + 2][ROWS][hidden]: the scaled embedding, every layer's output, the last norm's;
 * OUT.logits, float32 [ROWS][vocab]; OUT.experts, int32 [layers][ROWS][used].  The rows before go
 * in chunks of 256, the last ones GROUP at a time.  Two more passes must give the same bits: the
 * same once more, and one that looks into every layer for the experts, and so runs operation by
 * operation; if they do not, the exit status is 3. */
#include "core/clock.h"
#include "gpu/model_world.h"

enum { CHUNK = 256 };

typedef struct {
    world w;
    const int32_t *tokens;
    int32_t n, rows, group;
    int32_t *experts; /* [layers][rows][used]; NULL: nobody asks */
    int32_t at;       /* of the last rows: the first of the forward at hand */
} subject;

/* What the router of this layer chose for the rows of the forward at hand. */
static kk_status note_experts(subject *s, int32_t layer, int32_t n, kk_err *err) {
    const size_t used = (size_t)s->w.cfg->n_expert_used;
    int32_t *to = s->experts + ((size_t)layer * (size_t)s->rows + (size_t)s->at) * used;
    return s->w.be->read(s->w.dev, s->w.model->scratch.expert, 0, to, (size_t)n * used * sizeof *to,
                         err);
}

static kk_status on_part(void *user, int32_t layer, kk_layer_part part, const kk_buf *buf,
                         int32_t n_rows, int32_t width, kk_err *err) {
    (void)buf;
    (void)width;
    if (part != KK_PART_Q || layer == 0) return KK_OK;
    return note_experts(user, layer - 1, n_rows, err);
}

/* The next n tokens; taps and logits where their pointers are not NULL. */
static void forward(subject *s, int32_t n, float *taps, float *logits) {
    kk_err err = {0};
    int32_t layers[260];
    for (int32_t i = 0; i < s->w.cfg->n_layer + 2; i++) layers[i] = i - 1;
    const int64_t len = kk_cache_len(s->w.cache);
    const kk_gemma4_watch watch = {on_part, s};
    const kk_gemma4_group g = {.cache = s->w.cache,
                               .layout = &s->w.layout,
                               .tokens = s->tokens + len,
                               .n_rows = n,
                               .n_logits = logits ? n : 0};
    const kk_gemma4_forward_args a = {.groups = &g,
                                      .n_groups = 1,
                                      .tap_layers = layers,
                                      .n_taps = taps ? s->w.cfg->n_layer + 2 : 0,
                                      .tap_out = taps,
                                      .watch = logits && s->experts ? &watch : NULL};
    must(kk_cache_reserve(s->w.cache, n, &err), &err, "reserve");
    must(kk_gemma4_forward(s->w.model, &a, &err), &err, "forward");
    if (a.watch) must(note_experts(s, s->w.cfg->n_layer - 1, n, &err), &err, "experts");
    if (logits) world_logits(&s->w, n, logits);
    kk_cache_commit(s->w.cache, len + n);
}

/* The whole text; hidden may be NULL. */
static void pass(subject *s, float *hidden, float *logits) {
    const size_t dim = (size_t)s->w.cfg->hidden, taps = (size_t)s->w.cfg->n_layer + 2;
    float *taps_out = calloc(taps * CHUNK * dim, sizeof *taps_out);
    world_start(&s->w, s->n + CHUNK);
    for (int32_t left = s->n - s->rows; left > 0; left -= CHUNK)
        forward(s, left < CHUNK ? left : CHUNK, NULL, NULL);
    for (s->at = 0; s->at < s->rows; s->at += s->group) {
        const int32_t left = s->rows - s->at, n = left < s->group ? left : s->group;
        forward(s, n, hidden ? taps_out : NULL, logits + (size_t)s->at * (size_t)s->w.cfg->vocab);
        for (size_t t = 0; hidden && t < taps; t++)
            memcpy(hidden + (t * (size_t)s->rows + (size_t)s->at) * dim,
                   taps_out + t * (size_t)n * dim, (size_t)n * dim * sizeof *taps_out);
    }
    free(taps_out);
}

static void put(const char *out, const char *what, const void *data, size_t bytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%s", out, what);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) {
        printf("cannot write %s\n", path);
        exit(1);
    }
}

static int32_t *read_tokens(const char *path, int32_t *n) {
    FILE *f = fopen(path, "rb");
    int32_t *tokens = calloc(1 << 20, sizeof *tokens);
    *n = f && tokens ? (int32_t)fread(tokens, sizeof *tokens, 1 << 20, f) : 0;
    if (f) fclose(f);
    return tokens;
}

/* Tells whether all rows have the bits of the first pass. */
static bool same(const subject *s, const float *first, const float *again, const char *what) {
    const size_t row = (size_t)s->w.cfg->vocab;
    int32_t differ = 0, at = -1;
    for (int32_t i = 0; i < s->rows; i++) {
        if (memcmp(first + (size_t)i * row, again + (size_t)i * row, row * 4) == 0) continue;
        if (differ++ == 0) at = i;
    }
    if (differ) printf(", %s: %d rows DIFFER, first %d", what, differ, at);
    if (!differ) printf(", %s: the same bits", what);
    return differ == 0;
}

static int dump(subject *s, const char *out) {
    const size_t rows = (size_t)s->rows, vocab = rows * (size_t)s->w.cfg->vocab;
    const size_t hidden = ((size_t)s->w.cfg->n_layer + 2) * rows * (size_t)s->w.cfg->hidden;
    const size_t chosen = (size_t)s->w.cfg->n_layer * rows * (size_t)s->w.cfg->n_expert_used;
    float *h = calloc(hidden, 4), *logits = calloc(vocab, 4), *again = calloc(vocab, 4);
    double t = kk_now();
    pass(s, h, logits);
    printf("%d rows in %.2f s", s->n, kk_now() - t);
    pass(s, NULL, again);
    bool ok = same(s, logits, again, "once more");
    s->experts = calloc(chosen, 4);
    pass(s, NULL, again);
    ok = same(s, logits, again, "operation by operation") && ok;
    printf("\n");
    put(out, "hidden", h, hidden * 4);
    put(out, "logits", logits, vocab * 4);
    put(out, "experts", s->experts, chosen * 4);
    free(h);
    free(logits);
    free(again);
    free(s->experts);
    return ok ? 0 : 3;
}

int main(int argc, char **argv) {
    kk_err err = {0};
    kk_checkpoint *ckpt;
    subject s = {0};
    if (argc != 7) {
        printf("usage: exact_gpu_test FOLDER TOKENS OUT DEVICE ROWS GROUP\n");
        return 2;
    }
    int32_t *tokens = read_tokens(argv[2], &s.n);
    s.tokens = tokens;
    s.rows = atoi(argv[5]);
    s.group = atoi(argv[6]);
    if (s.rows < 1 || s.rows > s.n || s.group < 1 || s.group > CHUNK) {
        printf("%d tokens, %d rows in groups of %d: no\n", s.n, s.rows, s.group);
        return 2;
    }
    const kk_checkpoint_opts how = {0};
    double t = kk_now();
    must(kk_checkpoint_open(&ckpt, argv[1], &how, &err), &err, argv[1]);
    world_open(&s.w, ckpt, argv[4], false, CHUNK, CHUNK);
    printf("%s: loaded in %.1f s on %s; ", argv[4], kk_now() - t, world_kind(&s.w).isa);
    const int bad = dump(&s, argv[3]);
    world_close(&s.w);
    kk_checkpoint_close(ckpt);
    free(tokens);
    return bad;
}
