/* stored_body.h - keys and values read where they lie in a page, for attend_body.h.
 *
 * For few queries rows are not written down as floats first: their values are converted in
 * registers, 64 at a time, on their way into the products.  All formats convert exactly as
 * load_rows does, and every sum keeps its order, so both ways give the same bits.  Of keys that
 * are rebuilt from values only the part that RoPE rotates goes through a scratch. */

enum {
    STORED_SCALES = 2 * KK_PAGE_ROWS * (512 / KK_KV_GROUP), /* floats: scales, then biases */
    STORED_ROTATED = KK_ATTEND_CHUNK - STORED_SCALES,       /* floats of rotated values */
    STORED_GROUP = KK_KV_GROUP,                             /* values converted at a time */
};
_Static_assert((int)KK_KV_S8_GROUP == (int)KK_KV_GROUP, "formats share the group's size");

#ifndef KK_BF16_SPLIT
INLINE void vf_load_bf16_pair(const uint8_t *p, vf v[2]) {
    v[0] = vf_load_bf16(p);
    v[1] = vf_load_bf16(p + 32);
}
INLINE void vf_load_bf16_any(const uint8_t *p, vf v[2]) { vf_load_bf16_pair(p, v); }
INLINE void vf_load_any(const float *p, vf v[2]) {
    v[0] = vf_load(p);
    v[1] = vf_load(p + KK_LANES);
}
INLINE void vf_store_any(float *p, const vf v[2]) {
    vf_store(p, v[0]);
    vf_store(p + KK_LANES, v[1]);
}
#endif

/* Rows of one head of a page.  The format is a constant argument of what reads them. */
typedef struct {
    const uint8_t *codes;      /* codes of row 0 */
    const uint8_t *ahead;      /* the same of the page that comes next; NULL: it is not fetched */
    const float *scale, *bias; /* [KK_PAGE_ROWS][d / 64], of rows that are seen */
    const float *norm;         /* [d] by which values become keys; NULL: they are what is stored */
    const float *rotated;      /* [rows][2 * n_rot] of keys from row `first` on */
    int32_t d, n_rot, first;
} stored;

INLINE size_t stored_bytes(kk_kv_format f, size_t values) {
    return f == KK_KV_BF16 ? 2 * values : f == KK_KV_Q4 ? values / 2 : values;
}
INLINE bool stored_scaled(kk_kv_format f) { return f != KK_KV_BF16; }

/* Values [16 * part, 16 * part + 16) of the group of 64 whose codes are at p. */
INLINE vf stored_part(kk_kv_format f, const uint8_t *p, float scale, float bias, int32_t part) {
    switch (f) {
    case KK_KV_BF16: return vf_load_bf16(p + 32 * part);
    case KK_KV_S8: return vf_mul(s8_codes(p + 16 * part), vf_set1(scale));
    case KK_KV_Q8:
        return vf_fma(vf_from_i(vi_load_u8(p + 16 * part)), vf_set1(scale), vf_set1(bias));
    default: {
        const affine4 a = affine4_of(scale, bias);
        const vi bytes = vi_load_u8(p + 16 * (part % 2));
        return part < 2 ? affine4_low(a, bytes) : affine4_high(a, bytes);
    }
    }
}

/* The rows' scales as floats. */
INLINE void stored_scales(kk_kv_format f, stored *r, row_range at, float *scratch) {
    if (!stored_scaled(f)) return;
    const size_t groups = (size_t)r->d / STORED_GROUP, n = (size_t)(at.hi - at.lo) * groups;
    const size_t first = (size_t)at.lo * groups, codes = stored_bytes(f, (size_t)r->d);
    const size_t plane = KK_PAGE_ROWS * codes + 2 * first;
    load_f16(scratch + first, r->codes + plane, n);
    r->scale = r->bias = scratch;
    if (f == KK_KV_S8) return;
    load_f16(scratch + STORED_SCALES / 2 + first, r->codes + plane + 2 * KK_PAGE_ROWS * groups, n);
    r->bias = scratch + STORED_SCALES / 2;
}

/* The same of the next page, n bytes of codes from `at` on: no hardware would guess where. */
INLINE void fetch_stored(const stored *r, size_t at, size_t n) {
    if (!r->ahead) return;
    for (size_t i = 0; i < n; i += 64) __builtin_prefetch(r->ahead + at + i, 0, 2);
}

/* ---- keys -------------------------------------------------------------------------------- */

/* A few rows side by side: some addresses and their distance, not one of each row, which would be
 * more than there are registers. */
typedef struct {
    const uint8_t *at[KK_CHAINS / 4 + 1];
    const float *scale, *bias;
    size_t bytes, groups;
} stored_tile;

INLINE void every_4th(const uint8_t **at, const uint8_t *first, size_t bytes, int32_t keys) {
    at[0] = first;
#pragma GCC unroll 4
    for (int32_t i = 1; i < (keys + 3) / 4; i++) {
        at[i] = at[i - 1] + 4 * bytes;
        __asm__("" : "+r"(at[i])); /* not made again from the first at every use */
    }
}
INLINE const uint8_t *tile_row(const stored_tile *t, int32_t j) {
    return t->at[j / 4] + (size_t)(j % 4) * t->bytes;
}

INLINE stored_tile stored_rows(kk_kv_format f, const stored *r, int32_t j, int32_t keys) {
    stored_tile t = {.bytes = stored_bytes(f, (size_t)r->d), .groups = (size_t)r->d / STORED_GROUP};
    every_4th(t.at, r->codes + (size_t)j * t.bytes, t.bytes, keys);
    if (stored_scaled(f)) {
        t.scale = r->scale + (size_t)j * t.groups;
        t.bias = r->bias + (size_t)j * t.groups;
    }
    return t;
}

/* Values [i, i + 16) of row j of the tile; part: i / 16 % 4, a constant where that is known. */
INLINE vf stored_lanes(kk_kv_format f, const stored_tile *t, int32_t j, size_t i, int32_t part) {
    if (f == KK_KV_BF16) return vf_load_bf16(tile_row(t, j) + 2 * i);
    const size_t group = i / STORED_GROUP, at = (size_t)j * t->groups + group;
    return stored_part(f, tile_row(t, j) + stored_bytes(f, group * STORED_GROUP), t->scale[at],
                       f == KK_KV_S8 ? 0 : t->bias[at], part);
}

/* acc[h][j] += q[h] . values of row j. */
INLINE void dot_stored(kk_kv_format f, vf acc[KK_CHAINS], const float *q, size_t q_step,
                       const stored_tile *t, size_t d, int32_t nq, int32_t keys) {
    for (size_t i = 0; i < d; i += STORED_GROUP) {
        UNROLL
        for (int32_t j = 0; j < keys; j++) {
            vf k[4];
            if (f == KK_KV_BF16) {
                vf_load_bf16_pair(tile_row(t, j) + 2 * i, k);
                vf_load_bf16_pair(tile_row(t, j) + 2 * i + 64, k + 2);
            }
            UNROLL
            for (int32_t part = 0; part < 4; part++) {
                const size_t at = i + 16 * (size_t)part;
                if (f != KK_KV_BF16) k[part] = stored_lanes(f, t, j, at, part);
                UNROLL
                for (int32_t h = 0; h < nq; h++)
                    acc[h * keys + j] =
                        vf_fma(vf_load(q + (size_t)h * q_step + at), k[part], acc[h * keys + j]);
            }
        }
    }
}

/* The same over [lo, hi) of keys that are rebuilt, which RoPE leaves alone. */
INLINE void dot_rebuilt(kk_kv_format f, vf acc[KK_CHAINS], const float *q, size_t q_step,
                        const stored_tile *t, const float *norm, size_t lo, size_t hi, int32_t nq,
                        int32_t keys) {
    for (size_t i = lo; i < hi; i += KK_LANES) {
        const vf w = vf_held(vf_load(norm + i));
        vf qv[MOST_QUERIES];
        UNROLL
        for (int32_t h = 0; h < nq; h++) qv[h] = vf_held(vf_load(q + (size_t)h * q_step + i));
        UNROLL
        for (int32_t j = 0; j < keys; j++) {
            const vf k = vf_mul(stored_lanes(f, t, j, i, (int32_t)(i / KK_LANES % 4)), w);
            UNROLL
            for (int32_t h = 0; h < nq; h++)
                acc[h * keys + j] = vf_fma(qv[h], k, acc[h * keys + j]);
        }
    }
}

/* The same over n values that were rotated, of rows of t. */
INLINE void dot_rotated(vf acc[KK_CHAINS], const float *q, size_t q_step, const stored_tile *t,
                        size_t from, size_t n, int32_t nq, int32_t keys) {
    for (size_t i = 0; i < n; i += KK_LANES) {
        vf qv[MOST_QUERIES];
        UNROLL
        for (int32_t h = 0; h < nq; h++) qv[h] = vf_held(vf_load(q + (size_t)h * q_step + i));
        UNROLL
        for (int32_t j = 0; j < keys; j++) {
            const vf k = vf_load((const float *)(const void *)tile_row(t, j) + from + i);
            UNROLL
            for (int32_t h = 0; h < nq; h++)
                acc[h * keys + j] = vf_fma(qv[h], k, acc[h * keys + j]);
        }
    }
}

/* s[h][j] = scale * q[h] . k[j] for nq queries and keys [j, j + keys). */
INLINE void score_stored(kk_kv_format f, bool rebuilt, float *s, const float *q, steps to,
                         const stored *k, int32_t j, int32_t nq, int32_t keys, float scale) {
    vf acc[KK_CHAINS];
    float sums[KK_CHAINS];
    const size_t d = (size_t)k->d, rot = (size_t)k->n_rot, half = d / 2;
    const stored_tile t = stored_rows(f, k, j, keys);
    fetch_stored(k, (size_t)j * t.bytes, (size_t)keys * t.bytes);
#pragma GCC unroll 16
    for (int32_t i = 0; i < KK_CHAINS; i++) acc[i] = vf_set1(0);
    if (rebuilt) {
        stored_tile x = {.bytes = 2 * rot * sizeof(float)};
        every_4th(x.at, (const uint8_t *)(k->rotated + (size_t)(j - k->first) * 2 * rot), x.bytes,
                  keys);
        dot_rotated(acc, q, to.q, &x, 0, rot, nq, keys);
        dot_rebuilt(f, acc, q, to.q, &t, k->norm, rot, half, nq, keys);
        dot_rotated(acc, q + half, to.q, &x, rot, rot, nq, keys);
        dot_rebuilt(f, acc, q, to.q, &t, k->norm, half + rot, d, nq, keys);
    } else {
        dot_stored(f, acc, q, to.q, &t, d, nq, keys);
    }
    finish_sums(keys == KK_CHAINS ? s : sums, acc, scale);
#pragma GCC unroll 4
    for (int32_t h = 0; keys < KK_CHAINS && h < nq; h++)
        memcpy(s + (size_t)h * to.s, sums + h * keys, (size_t)keys * sizeof *sums);
}

/* Keys [at.lo, at.hi); the last ones with some before them, once more, where there are as many. */
INLINE void score_stored_range(kk_kv_format f, bool rebuilt, float *s, const float *q, steps to,
                               const stored *k, row_range at, int32_t nq, float scale) {
    const int32_t most = KK_CHAINS / nq, few = KK_CHAINS / 4;
    int32_t j = at.lo;
    s -= at.lo;
    for (; j + most <= at.hi; j += most)
        score_stored(f, rebuilt, s + j, q, to, k, j, nq, most, scale);
    if (j < at.hi && at.hi - at.lo >= most) {
        j = at.hi - most;
        score_stored(f, rebuilt, s + j, q, to, k, j, nq, most, scale);
        return;
    }
    for (; few < most && j + few <= at.hi; j += few)
        score_stored(f, rebuilt, s + j, q, to, k, j, nq, few, scale);
    for (; j < at.hi; j++) score_stored(f, rebuilt, s + j, q, to, k, j, nq, 1, scale);
}

/* K = RoPE(k_norm * V) of rows `at`, of the values that are rotated; cs: the angles of row 0. */
INLINE void rotate_stored(kk_kv_format f, const stored *k, const float *cs, row_range at,
                          float *to) {
    const size_t half = (size_t)k->d / 2, rot = (size_t)k->n_rot;
    const float *norm = k->norm;
    stored_tile t = stored_rows(f, k, at.lo, 1);
    cs += (size_t)at.lo * 2 * rot;
    for (int32_t j = at.lo; j < at.hi; j++, to += 2 * rot, cs += 2 * rot) {
        for (size_t i = 0; i < rot; i += KK_LANES) {
            const size_t o = half + i;
            const vf x = stored_lanes(f, &t, 0, i, (int32_t)(i / KK_LANES % 4));
            const vf y = stored_lanes(f, &t, 0, o, (int32_t)(o / KK_LANES % 4));
            const vf a = vf_mul(x, vf_load(norm + i)), b = vf_mul(y, vf_load(norm + o));
            const vf cosine = vf_load(cs + i), sine = vf_load(cs + rot + i);
            vf_store(to + i, vf_fnma(b, sine, vf_mul(a, cosine)));
            vf_store(to + rot + i, vf_fma(a, sine, vf_mul(b, cosine)));
        }
        t.at[0] += t.bytes;
        if (!stored_scaled(f)) continue;
        t.scale += t.groups;
        t.bias += t.groups;
    }
}

/* ---- values ------------------------------------------------------------------------------ */

/* 64 values of a row, and 64 floats of sums, in an order of lanes that is bf16's own. */
INLINE void stored_values(kk_kv_format f, const uint8_t *p, float scale, float bias, vf v[4]) {
    if (f == KK_KV_BF16) {
        vf_load_bf16_any(p, v);
        vf_load_bf16_any(p + 64, v + 2);
        return;
    }
#pragma GCC unroll 4
    for (int32_t part = 0; part < 4; part++) v[part] = stored_part(f, p, scale, bias, part);
}
INLINE void load_any(kk_kv_format f, const float *p, vf v[4]) {
    if (f == KK_KV_BF16) {
        vf_load_any(p, v);
        vf_load_any(p + 32, v + 2);
        return;
    }
#pragma GCC unroll 4
    for (int32_t k = 0; k < 4; k++) v[k] = vf_load(p + 16 * k);
}
INLINE void store_any(kk_kv_format f, float *p, const vf v[4]) {
    if (f == KK_KV_BF16) {
        vf_store_any(p, v);
        vf_store_any(p + 32, v + 2);
        return;
    }
#pragma GCC unroll 4
    for (int32_t k = 0; k < 4; k++) vf_store(p + 16 * k, v[k]);
}

/* acc[h] = acc[h] * c[h], then += p[h][j] * v[j] in order of j, for rows `at`; p[h][0] is that of
 * the first of them. */
INLINE void add_stored(kk_kv_format f, float *acc, const float *c, const float *p, steps to,
                       const stored *v, row_range at, int32_t nq) {
    const size_t bytes = stored_bytes(f, (size_t)v->d), groups = (size_t)v->d / STORED_GROUP;
    for (size_t g = 0; g < groups; g++) {
        const size_t i = g * STORED_GROUP;
        const uint8_t *row = v->codes + (size_t)at.lo * bytes + stored_bytes(f, i);
        vf a[MOST_QUERIES][4], x[4];
#pragma GCC unroll 4
        for (int32_t h = 0; h < nq; h++) {
            load_any(f, acc + (size_t)h * to.q + i, a[h]);
#pragma GCC unroll 4
            for (int32_t k = 0; k < 4; k++) a[h][k] = vf_mul(a[h][k], vf_set1(c[(size_t)h * to.c]));
        }
        for (int32_t j = at.lo; j < at.hi; j++, row += bytes) {
            const size_t s = (size_t)j * groups + g;
            fetch_stored(v, (size_t)j * bytes + stored_bytes(f, i), stored_bytes(f, STORED_GROUP));
            stored_values(f, row, stored_scaled(f) ? v->scale[s] : 0,
                          stored_scaled(f) ? v->bias[s] : 0, x);
#pragma GCC unroll 4
            for (int32_t h = 0; h < nq; h++) {
                const vf pj = vf_set1(p[(size_t)h * to.s + (size_t)(j - at.lo)]);
#pragma GCC unroll 4
                for (int32_t k = 0; k < 4; k++) a[h][k] = vf_fma(pj, x[k], a[h][k]);
            }
        }
#pragma GCC unroll 4
        for (int32_t h = 0; h < nq; h++) store_any(f, acc + (size_t)h * to.q + i, a[h]);
    }
}

/* ---- by format and number of queries ------------------------------------------------------ */

#if KK_HEAD_TILE == 4
#define STORED_QUERIES(call)                                                                       \
    for (; h + 4 <= nq; h += 4) call(4);                                                           \
    if (h + 2 <= nq) {                                                                             \
        call(2);                                                                                   \
        h += 2;                                                                                    \
    }                                                                                              \
    if (h < nq) call(1)
#else
#define STORED_QUERIES(call)                                                                       \
    for (; h < nq; h++) call(1)
#endif

INLINE void score_stored_all(kk_kv_format f, bool rebuilt, float *s, const float *q, steps to,
                             const stored *k, row_range at, int32_t nq, float scale) {
    int32_t h = 0;
#define SCORE(n)                                                                                   \
    score_stored_range(f, rebuilt, s + (size_t)h * to.s, q + (size_t)h * to.q, to, k, at, n, scale)
    STORED_QUERIES(SCORE);
#undef SCORE
}

INLINE void add_stored_all(kk_kv_format f, float *acc, const float *c, const float *p, steps to,
                           const stored *v, row_range at, int32_t nq) {
    int32_t h = 0;
#define AT(x, step) ((x) + (size_t)h * to.step)
#define ADD(n) add_stored(f, AT(acc, q), AT(c, c), AT(p, s), to, v, at, n)
    STORED_QUERIES(ADD);
#undef ADD
#undef AT
}
#undef STORED_QUERIES

/* `call` with the format as a constant. */
#define BY_FORMAT(f, call)                                                                         \
    switch (f) {                                                                                   \
    case KK_KV_Q8: call(KK_KV_Q8); break;                                                          \
    case KK_KV_Q4: call(KK_KV_Q4); break;                                                          \
    case KK_KV_S8: call(KK_KV_S8); break;                                                          \
    default: call(KK_KV_BF16); break;                                                              \
    }
static void score_as_stored(kk_kv_format f, float *s, const float *q, steps to, const stored *k,
                            row_range at, int32_t nq, float scale) {
#define CALL(f) score_stored_all(f, false, s, q, to, k, at, nq, scale)
    BY_FORMAT(f, CALL)
#undef CALL
}

static void score_rebuilt(kk_kv_format f, float *s, const float *q, steps to, const stored *k,
                          row_range at, int32_t nq, float scale) {
#define CALL(f) score_stored_all(f, true, s, q, to, k, at, nq, scale)
    BY_FORMAT(f, CALL)
#undef CALL
}

static void add_in_place(kk_kv_format f, float *acc, const float *c, const float *p, steps to,
                         const stored *v, row_range at, int32_t nq) {
#define CALL(f) add_stored_all(f, acc, c, p, to, v, at, nq)
    BY_FORMAT(f, CALL)
#undef CALL
}

static void ready_in_place(kk_kv_format f, stored *r, row_range at, float *scratch) {
#define CALL(f) stored_scales(f, r, at, scratch)
    BY_FORMAT(f, CALL)
#undef CALL
}

static void rotate_in_place(kk_kv_format f, const stored *k, const float *cs, row_range at,
                            float *to) {
#define CALL(f) rotate_stored(f, k, cs, at, to)
    BY_FORMAT(f, CALL)
#undef CALL
}
