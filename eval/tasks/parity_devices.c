/* parity_devices.c - see parity_devices.h. */
#include "eval/tasks/parity_devices.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/tie.h"

enum { SIDES = 2, MOST_PROMPT = 512, PROMPT = 40, STEPS = 48, DRAFTED = 32, ROUND_ROWS = 16 };

typedef struct {
    kk_engine *engine[SIDES];
    int32_t vocab, prompt[MOST_PROMPT], n_prompt;
} pair;

static void pair_close(pair *p) {
    for (int i = 0; i < SIDES; i++) kk_engine_close(p->engine[i]);
}

/* splitmix64 */
static void draw_prompt(pair *p) {
    uint64_t random = 19;
    for (int32_t i = 0; i < p->n_prompt; i++) {
        uint64_t z = random += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        p->prompt[i] = (int32_t)((z ^ (z >> 31)) % (uint64_t)p->vocab);
    }
}

static kk_status pair_open(pair *p, const char *model, const char *drafter,
                           const kk_parity_devices_opts *o, kk_err *err) {
    const char *device[SIDES] = {o->device, o->against};
    kk_model_info info;
    for (int i = 0; i < SIDES; i++) {
        const kk_engine_opts how = {.model = model,
                                    .drafter = drafter,
                                    .draft_type = drafter ? "file" : NULL,
                                    .device = device[i],
                                    .exact_rows = ROUND_ROWS,
                                    .exact_packed_rows = ROUND_ROWS};
        KK_TRY(kk_engine_open(&p->engine[i], &how, err));
    }
    kk_engine_info(p->engine[0], &info);
    p->vocab = info.vocab;
    p->n_prompt = o->prompt ? o->prompt : PROMPT;
    draw_prompt(p);
    return KK_OK;
}

static kk_status session_of(const pair *p, int side, kk_spec spec, kk_session **out, kk_err *err) {
    const kk_session_opts how = {
        .spec = spec, .kv_format = KK_KV_F32, .draft_fixed = spec == KK_SPEC_DFLASH};
    KK_TRY(kk_session_new(out, p->engine[side], &how, err));
    const kk_status st = kk_session_append(*out, p->prompt, (size_t)p->n_prompt, NULL, NULL, err);
    if (st == KK_OK) return KK_OK;
    kk_session_free(*out);
    *out = NULL;
    return st;
}

static int32_t largest(const float *x, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

void kk_parity_devices_rows(kk_parity_devices_report *out, const float *a, const float *b,
                            int32_t n) {
    const int32_t x = largest(a, n), y = largest(b, n);
    double most = 0, square = 0;
    for (int32_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= most)) most = d;
        square += (double)b[i] * (double)b[i];
    }
    const double rms = sqrt(square / n), off = most / rms;
    if (!(off <= out->most)) out->most = off;
    out->n++;
    out->equal += x == y;
    out->near += x != y && (double)b[y] - (double)b[x] <= 2 * out->tol * rms;
}

void kk_parity_devices_judge(kk_parity_devices_report *out) {
    out->ok = out->n > 0 && out->equal + out->near == out->n && out->most <= out->tol;
    if (out->drafts && out->equal == out->n)
        out->ok = out->ok && out->text_equal && out->accepted[0] == out->accepted[1];
}

/* Both sessions take what the first of them chooses. */
static kk_status compare_steps(const pair *p, kk_session *const s[SIDES], int32_t steps,
                               kk_parity_devices_report *out, kk_err *err) {
    for (int32_t k = 0; k < steps; k++) {
        const float *row[SIDES];
        for (int i = 0; i < SIDES; i++) KK_TRY(kk_session_logits(s[i], &row[i], err));
        kk_parity_devices_rows(out, row[0], row[1], p->vocab);
        const int32_t next = largest(row[0], p->vocab);
        for (int i = 0; i < SIDES; i++) KK_TRY(kk_session_append(s[i], &next, 1, NULL, NULL, err));
    }
    return KK_OK;
}

static kk_status compare_choices(const pair *p, int32_t steps, kk_parity_devices_report *out,
                                 kk_err *err) {
    kk_session *s[SIDES] = {NULL, NULL};
    kk_status st = session_of(p, 0, KK_SPEC_NONE, &s[0], err);
    if (st == KK_OK) st = session_of(p, 1, KK_SPEC_NONE, &s[1], err);
    if (st == KK_OK) st = compare_steps(p, s, steps, out, err);
    for (int i = 0; i < SIDES; i++) kk_session_free(s[i]);
    return st;
}

static kk_status compare_drafts(const pair *p, kk_parity_devices_report *out, kk_err *err) {
    kk_session *s[SIDES] = {NULL, NULL};
    kk_result r[SIDES];
    kk_status st = KK_OK;
    const kk_generate_opts how = {.max_tokens = DRAFTED, .ignore_eos = true};
    for (int i = 0; i < SIDES && st == KK_OK; i++) {
        st = session_of(p, i, KK_SPEC_DFLASH, &s[i], err);
        if (st == KK_OK) st = kk_generate(s[i], &how, NULL, NULL, &r[i], err);
    }
    if (st == KK_OK) {
        out->drafted = r[0].spec.drafted;
        for (int i = 0; i < SIDES; i++) out->accepted[i] = r[i].spec.accepted;
        out->text_equal =
            kk_session_len(s[0]) == kk_session_len(s[1]) &&
            memcmp(kk_session_tokens(s[0]), kk_session_tokens(s[1]),
                   (size_t)kk_session_len(s[0]) * sizeof *kk_session_tokens(s[0])) == 0;
    }
    for (int i = 0; i < SIDES; i++) kk_session_free(s[i]);
    return st;
}

kk_status kk_parity_devices(const char *model, const kk_parity_devices_opts *opts,
                            kk_parity_devices_report *out, kk_err *err) {
    pair p = {0};
    char drafter[4096];
    *out = (kk_parity_devices_report){.tol = opts->tol > 0 ? opts->tol : KK_LOGIT_TOLERANCE};
    if (opts->prompt < 0 || opts->prompt > MOST_PROMPT)
        return kk_fail(err, KK_EINVAL, "a prompt of %d tokens: up to %d", opts->prompt,
                       MOST_PROMPT);
    const int n = snprintf(drafter, sizeof drafter, "%s/dflash", model);
    out->drafts = n > 0 && (size_t)n < sizeof drafter && access(drafter, F_OK) == 0;
    kk_status st = pair_open(&p, model, out->drafts ? drafter : NULL, opts, err);
    if (st == KK_OK) st = compare_choices(&p, opts->steps ? opts->steps : STEPS, out, err);
    if (st == KK_OK && out->drafts) st = compare_drafts(&p, out, err);
    pair_close(&p);
    if (st != KK_OK) return st;
    kk_parity_devices_judge(out);
    return KK_OK;
}
