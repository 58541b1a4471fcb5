/* lossless_axes.h - what settings are drawn from, how often each value and each pair of values
 * came up, and a draw that evens them out. */
#ifndef KK_TESTS_LOSSLESS_AXES_H
#define KK_TESTS_LOSSLESS_AXES_H

#include "support/lossless.h"

enum {
    AXIS_KIND,
    AXIS_LENGTH,
    AXIS_BLOCK, /* value: block - 1 */
    AXIS_FORMAT,
    AXIS_POLICY,
    AXIS_THREADS, /* value: threads - 1 */
    AXIS_SAMPLING,
    AXIS_PROPOSER,
    AXIS_ENDING,
    AXES,
    AXIS_VALUES = MOST_BLOCK,
};

static const struct {
    const char *name;
    int32_t values;
    const char *const *names; /* NULL: value + 1, or as the library names K/V formats */
} lossless_axes[AXES] = {
    [AXIS_KIND] = {"prompt", KINDS_OF_TEXT, lossless_kinds},
    [AXIS_LENGTH] = {"length", LENGTHS, lossless_lengths},
    [AXIS_BLOCK] = {"block", MOST_BLOCK, NULL},
    [AXIS_FORMAT] = {"format", KK_KV_FORMATS, NULL},
    [AXIS_POLICY] = {"policy", POLICIES, lossless_policies},
    [AXIS_THREADS] = {"threads", 2, NULL},
    [AXIS_SAMPLING] = {"sampling", SAMPLINGS, lossless_samplings},
    [AXIS_PROPOSER] = {"proposer", PROPOSERS, lossless_proposers},
    [AXIS_ENDING] = {"ending", ENDINGS, lossless_endings},
};

/* One case, as a value of each axis. */
typedef struct {
    int32_t value[AXES];
} lossless_point;

typedef struct {
    int64_t single[AXES][AXIS_VALUES];
    int64_t pair[AXES][AXIS_VALUES][AXES][AXIS_VALUES]; /* of different axes */
} lossless_counts;

static inline void lossless_count(lossless_counts *c, const lossless_point *p) {
    for (int a = 0; a < AXES; a++) {
        c->single[a][p->value[a]]++;
        for (int b = 0; b < AXES; b++) c->pair[a][p->value[a]][b][p->value[b]]++;
    }
}

/* How much a point is needed: rare pairs weigh most. */
static inline double lossless_need(const lossless_counts *c, const lossless_point *p) {
    double need = 0;
    for (int a = 0; a < AXES; a++)
        for (int b = 0; b < a; b++)
            need += 1.0 / (double)(1 + c->pair[a][p->value[a]][b][p->value[b]]);
    return need;
}

/* The most needed of some random settings for a prompt, format, policy and number of threads;
 * *random goes on. */
static inline lossless_point lossless_draw(const lossless_counts *c, const lossless_stage *stage,
                                           int32_t threads, uint64_t *random) {
    enum { CANDIDATES = 24 };
    lossless_point best = {{0}};
    double most = -1;
    for (int i = 0; i < CANDIDATES; i++) {
        lossless_point p;
        for (int a = 0; a < AXES; a++)
            p.value[a] = (int32_t)random_below(random, (uint32_t)lossless_axes[a].values);
        p.value[AXIS_KIND] = (int32_t)stage->prompt->kind;
        p.value[AXIS_LENGTH] = (int32_t)stage->prompt->length;
        p.value[AXIS_FORMAT] = (int32_t)stage->format;
        p.value[AXIS_POLICY] = (int32_t)stage->policy;
        p.value[AXIS_THREADS] = threads - 1;
        p.value[AXIS_ENDING] = (int32_t)lossless_ending_of(stage->seed, p.value[AXIS_SAMPLING]);
        const double need = lossless_need(c, &p);
        if (need > most) {
            most = need;
            best = p;
        }
    }
    return best;
}

static inline lossless_setting lossless_setting_of(const lossless_point *p) {
    return (lossless_setting){.block = p->value[AXIS_BLOCK] + 1,
                              .threads = p->value[AXIS_THREADS] + 1,
                              .sampling = p->value[AXIS_SAMPLING],
                              .proposer = (lossless_proposer)p->value[AXIS_PROPOSER]};
}

/* A case in words, to find it again. */
typedef struct {
    char text[32];
} lossless_word;

static inline lossless_word lossless_value_name(int axis, int32_t value) {
    lossless_word w;
    snprintf(w.text, sizeof w.text, "%d", value + 1);
    if (lossless_axes[axis].names)
        snprintf(w.text, sizeof w.text, "%s", lossless_axes[axis].names[value]);
    if (axis == AXIS_FORMAT)
        snprintf(w.text, sizeof w.text, "%s", kk_kv_format_name((kk_kv_format)value));
    return w;
}

static inline void lossless_name(const lossless_point *p, uint32_t index, char *out, size_t cap) {
    size_t n = (size_t)snprintf(out, cap, "prompt %u", index);
    for (int a = 0; a < AXES && n < cap; a++) {
        n += (size_t)snprintf(out + n, cap - n, ", %s %s", lossless_axes[a].name,
                              lossless_value_name(a, p->value[a]).text);
    }
}

#endif
