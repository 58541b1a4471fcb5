/* kernels_body.h - the vector kernels, written once over sixteen lanes.
 *
 * Included by kernels_avx2.c, kernels_avx512.c and kernels_neon.c after their simd_*.h, which
 * gives vf (16 floats), vi (16 int32, or 64 bytes) and the operations on them, and KK_KERNELS,
 * the name of the table defined at the end.  Attention is in attend_body.h.  The order of float
 * operations is that of reference.c, lane for lane; only tiling differs.
 *
 * Quantised weights: a strip is 16 outputs.  load_transposed loads 16 bytes of each of the 16
 * weight rows, transposed, so that each lane has one output; a block of 32 weights is then eight vi
 * whose lanes hold four weights each, and every row of activations costs eight dot4 with the same
 * four activations in all lanes.  One row (decode) and many (prefill) give the same bits. */
#include <assert.h>

#include "backend/angles.h"
#include "backend/cpu/kernels.h"
#include "core/mathf.h"

#define INLINE static inline __attribute__((always_inline))
/* Before a loop inside a macro's arguments, where #pragma cannot stand. */
#define UNROLL _Pragma("GCC unroll 16")

/* ---- functions of lanes ----------------------------------------------------------------- */

INLINE vf exp_lanes(vf x) {
    x = vf_min(vf_max(x, vf_set1(KK_EXP_MIN)), vf_set1(KK_EXP_MAX));
    const vf n = vf_round(vf_mul(x, vf_set1(KK_LOG2E)));
    vf r = vf_fma(n, vf_set1(-KK_LN2_HI), x);
    r = vf_fma(n, vf_set1(-KK_LN2_LO), r);
    vf p = vf_set1(1.0f / 5040);
    p = vf_fma(p, r, vf_set1(1.0f / 720));
    p = vf_fma(p, r, vf_set1(1.0f / 120));
    p = vf_fma(p, r, vf_set1(1.0f / 24));
    p = vf_fma(p, r, vf_set1(1.0f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_scale2(p, vi_from_f(n));
}

INLINE vf gelu_lanes(vf x) {
    const vf one = vf_set1(1.0f);
    const vf t = vf_fma(vf_mul(x, x), vf_set1(KK_GELU_CUBE), one);
    return vf_div(x, vf_add(one, exp_lanes(vf_mul(vf_mul(x, t), vf_set1(KK_GELU_MINUS_2U)))));
}

INLINE vf silu_lanes(vf x) {
    return vf_div(x, vf_add(vf_set1(1.0f), exp_lanes(vf_mul(x, vf_set1(-1.0f)))));
}

INLINE vf softcap_lanes(vf x, vf cap) {
    const vf z = vf_div(x, cap), one = vf_set1(1.0f), two = vf_set1(2.0f);
    const vf tanh = vf_sub(one, vf_div(two, vf_add(exp_lanes(vf_mul(z, two)), one)));
    return vf_fma(x, vf_set1(0), vf_mul(cap, tanh));
}

/* Runs `body` over [0, n) in steps of 16 with V(p) the lanes of p and SET(p, v) storing them;
 * the last step covers what is left. */
#define EACH_LANES(n, ...)                                                                         \
    do {                                                                                           \
        int32_t i = 0;                                                                             \
        for (; i + KK_LANES <= (n); i += KK_LANES) {                                               \
            enum { tail = 0 };                                                                     \
            const int32_t left = KK_LANES;                                                         \
            (void)left;                                                                            \
            __VA_ARGS__                                                                            \
        }                                                                                          \
        if (i < (n)) {                                                                             \
            enum { tail = 1 };                                                                     \
            const int32_t left = (n)-i;                                                            \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    } while (0)
#define V(p) (tail ? vf_load_n((p) + i, left) : vf_load((p) + i))
#define SET(p, v)                                                                                  \
    do {                                                                                           \
        if (tail)                                                                                  \
            vf_store_n((p) + i, v, left);                                                          \
        else                                                                                       \
            vf_store((p) + i, v);                                                                  \
    } while (0)

INLINE float dot_lanes(const float *a, const float *b, int32_t n) {
    vf acc = vf_set1(0);
    EACH_LANES(n, { acc = vf_fma(V(a), V(b), acc); });
    return vf_sum(acc);
}

/* out[i] = vf_sum(acc[i]) * scale */
INLINE void finish_sums(float out[KK_CHAINS], const vf acc[KK_CHAINS], float scale) {
#if KK_CHAINS == 16
    vf_store(out, vf_mul(vf_sums(acc), vf_set1(scale)));
#else
    for (int32_t i = 0; i < KK_CHAINS; i++) out[i] = vf_sum(acc[i]) * scale;
#endif
}

/* ---- rows ------------------------------------------------------------------------------- */

static float inv_rms(const float *x, int32_t n, float eps) {
    return 1.0f / sqrtf(dot_lanes(x, x, n) / (float)n + eps);
}

static void norm(float *y, const float *x, const float *w, int32_t n, float eps) {
    const vf inv = vf_set1(inv_rms(x, n, eps));
    if (w)
        EACH_LANES(n, { SET(y, vf_mul(vf_mul(V(x), inv), V(w))); });
    else
        EACH_LANES(n, { SET(y, vf_mul(V(x), inv)); });
}

static void glu(float *y, const float *gate, const float *up, int32_t n, kk_activation act) {
    if (act == KK_SILU)
        EACH_LANES(n, { SET(y, vf_mul(silu_lanes(V(gate)), V(up))); });
    else
        EACH_LANES(n, { SET(y, vf_mul(gelu_lanes(V(gate)), V(up))); });
}

static void add_scale(float *y, const float *a, int32_t n, float scale) {
    const vf s = vf_set1(scale);
    EACH_LANES(n, { SET(y, vf_mul(vf_add(V(y), V(a)), s)); });
}

static void axpy(float *y, float w, const float *x, int32_t n) {
    const vf ws = vf_set1(w);
    EACH_LANES(n, { SET(y, vf_fma(ws, V(x), V(y))); });
}

static void softcap(float *x, int32_t n, float cap) {
    const vf c = vf_set1(cap);
    EACH_LANES(n, { SET(x, softcap_lanes(V(x), c)); });
}

/* Finds the largest value, then its index. A row with a NaN may have neither. */
static int32_t largest(const float *x, int32_t n) {
    vf top[4];
    float most = -INFINITY;
    int32_t i = 0;
    for (int k = 0; k < 4; k++) top[k] = vf_set1(-INFINITY);
    for (; i + 4 * KK_LANES <= n; i += 4 * KK_LANES)
        for (int k = 0; k < 4; k++) top[k] = vf_max(vf_load(x + i + k * KK_LANES), top[k]);
    if (i > 0) most = vf_hmax(vf_max(vf_max(top[0], top[1]), vf_max(top[2], top[3])));
    for (; i < n; i++) most = x[i] > most ? x[i] : most;
    for (i = 0; i < n; i++)
        if (x[i] == most) return i;
    return kk_kernels_reference.largest(x, n);
}

static void rotate(float *x, const float *cs, int32_t n, int32_t n_rot) {
    float *y = x + n / 2;
    const float *sn = cs + n_rot;
    EACH_LANES(n_rot, {
        const vf a = V(x), b = V(y), c = V(cs), s = V(sn);
        SET(x, vf_fnma(b, s, vf_mul(a, c)));
        SET(y, vf_fma(a, s, vf_mul(b, c)));
    });
}

/* inv: 127 / amax; d: amax / 127. */
INLINE void quantize_block(vf lo, vf hi, float amax, float inv, float d, kk_act_block *b) {
    if (!(amax >= KK_ACT_LEAST)) {
        kk_act_empty(b, amax);
        return;
    }
    const vi qlo = vi_from_f(vf_mul(lo, vf_set1(inv))), qhi = vi_from_f(vf_mul(hi, vf_set1(inv)));
    vi_store8(b->q, qlo);
    vi_store8(b->q + KK_LANES, qhi);
    b->d = d;
    b->minus_low = -bytes_sum(b->q);
    b->minus = b->minus_low - bytes_sum(b->q + KK_LANES);
}

static void quantize(const float *x, size_t n, kk_act_block *b) {
    for (size_t k = 0; k < n / KK_BLOCK; k++, x += KK_BLOCK, b++) {
        const vf lo = vf_load(x), hi = vf_load(x + KK_LANES);
        const float amax = vf_finite(lo, hi) ? vf_hmax(vf_max(vf_abs(lo), vf_abs(hi))) : (float)NAN;
        quantize_block(lo, hi, amax, 127.0f / amax, amax / 127.0f, b);
    }
}

#ifdef KK_BF16_LARGEST
/* Divisions take longest, and are done for several blocks side by side. */
static void quantize_bf16(const uint8_t *x, size_t n, kk_act_block *b) {
    enum { SOME = 64 };
    float amax[SOME], inv[SOME], d[SOME];
    for (size_t left = n / KK_BLOCK, some; left; left -= some) {
        some = left < SOME ? left : SOME;
        for (size_t i = 0; i < some; i++) {
            const uint16_t most = bf16_largest(x + 2 * KK_BLOCK * i);
            amax[i] = most < 0x7f80 ? kk_bf16_f32(most) : (float)NAN;
        }
        for (size_t i = 0; i < some; i++) inv[i] = 127.0f / amax[i], d[i] = amax[i] / 127.0f;
        for (size_t i = 0; i < some; i++, x += 2 * KK_BLOCK) {
            vf v[2];
            vf_load_bf16_pair(x, v);
            quantize_block(v[0], v[1], amax[i], inv[i], d[i], b++);
        }
    }
}
#endif

/* A strip's rows are read side by side, which hardware prefetchers do not recognise; so while one
 * strip is worked on, another is fetched from end to end.  Into the second-level cache: the first
 * is too small for both.  Where there is none to fetch, the strip's own weights stand for it. */
INLINE const uint8_t *ahead_of(const kk_strip *s) { return s->ahead ? s->ahead : s->w; }

/* ---- quantised weights ------------------------------------------------------------------ */

/* How a block's integer sum becomes a float. */
typedef enum { ZERO_POINT, FLOAT_MIN, INT_MIN_SCALE, HALF_SCALES, AFFINE } block_kind;

/* A block of 32 weights of 16 outputs.  Unused members are never touched. */
typedef struct {
    vi q[8];   /* lane: an output; its bytes: weights 4g..4g+3 */
    vf d, m;   /* scale; second scale */
    vi s0, s1; /* integer scales: INT_MIN_SCALE scale and min, HALF_SCALES of the two halves */
} block;
_Static_assert(sizeof(block) <= KK_PANEL_BYTES, "a block fits its scratch");

INLINE vi strided_32(const uint8_t *p, size_t stride) {
    int32_t v[KK_STRIP];
    for (size_t i = 0; i < KK_STRIP; i++) v[i] = (int32_t)kk_le32(p + i * stride);
    return vi_load(v);
}

INLINE void unpack_nibbles(block *b, const uint8_t *p, size_t stride) {
    const vi low = vi_set1(0x0f0f0f0f);
    vi t[4];
    load_transposed(p, stride, t);
    for (int g = 0; g < 4; g++) {
        b->q[g] = vi_and(t[g], low);
        b->q[g + 4] = vi_and(vi_shr(t[g], 4), low);
    }
}

/* Bit 4g + i of a lane's word becomes 16 in byte i of q[g]: the four bits are spread by a
 * multiplication, which puts bit i at 8i (and other bits elsewhere, which are masked off). */
INLINE void add_5th_bit(block *b, vi bits) {
    const vi spread = vi_set1(0x00204081), ones = vi_set1(0x01010101), low = vi_set1(15);
    for (int g = 0; g < 8; g++) {
        const vi four = vi_and(vi_shr_var(bits, 4 * g), low);
        b->q[g] = vi_or(b->q[g], vi_shl(vi_and(vi_mul(four, spread), ones), 4));
    }
}

INLINE void unpack_transposed_q4_0(block *b, const uint8_t *p, size_t stride) {
    b->d = vf_strided_f16(p, stride);
    unpack_nibbles(b, p + 2, stride);
}
INLINE void unpack_q5_0(block *b, const uint8_t *p, size_t stride) {
    b->d = vf_strided_f16(p, stride);
    unpack_nibbles(b, p + 6, stride);
    add_5th_bit(b, strided_32(p + 2, stride));
}
INLINE void unpack_q5_1(block *b, const uint8_t *p, size_t stride) {
    b->d = vf_strided_f16(p, stride);
    b->m = vf_strided_f16(p + 2, stride);
    unpack_nibbles(b, p + 8, stride);
    add_5th_bit(b, strided_32(p + 4, stride));
}
INLINE void unpack_q8_0(block *b, const uint8_t *p, size_t stride) {
    b->d = vf_strided_f16(p, stride);
    load_transposed(p + 2, stride, b->q);
    load_transposed(p + 18, stride, b->q + 4);
    for (int g = 0; g < 8; g++) b->q[g] = q8_weights(b->q[g]);
}

/* The scale, or bias, at p of each of 16 outputs. */
INLINE vf strided_plane(const uint8_t *p, size_t stride, kk_dtype t) {
    if (t == KK_BF16) return vf_strided_bf16(p, stride);
    if (t == KK_F16) return vf_strided_f16(p, stride);
    float v[KK_STRIP];
    for (size_t i = 0; i < KK_STRIP; i++) v[i] = kk_bits_f32(kk_le32(p + i * stride));
    return vf_load(v);
}

/* The scales and biases of group `unit`, for its n blocks. */
INLINE void affine_scales(block *b, const kk_strip *s, size_t unit, size_t n) {
    const size_t at = unit * (s->planes.type == KK_F32 ? 4 : 2);
    const vf d = strided_plane(s->planes.scales + at, s->plane_stride, s->planes.type);
    const vf m = strided_plane(s->planes.biases + at, s->plane_stride, s->planes.type);
    for (size_t i = 0; i < n; i++) b[i].d = d, b[i].m = m;
}

/* A byte holds two codes that follow each other, where those of GGUF lie 16 apart: the block gets
 * the even ones, then the odd ones, and so do the activations it meets (in_pairs). */
INLINE void unpack_mlx4(block *b, const uint8_t *p, size_t stride, size_t n) {
    for (size_t i = 0; i < n; i++) unpack_nibbles(b + i, p + 16 * i, stride);
}
INLINE void unpack_mlx4_32(block *b, const uint8_t *p, size_t stride) {
    unpack_mlx4(b, p, stride, 1);
}
INLINE void unpack_mlx4_64(block *b, const uint8_t *p, size_t stride) {
    unpack_mlx4(b, p, stride, 2);
}

/* Codes of 8 bits become signed, less 128, which is what q8_0 has: the sum of the activations makes
 * up for it. */
INLINE void unpack_mlx8(block *b, const uint8_t *p, size_t stride, size_t n) {
    const vi top = vi_set1((int32_t)0x80808080u);
    for (size_t i = 0; i < n; i++) {
        load_transposed(p + 32 * i, stride, b[i].q);
        load_transposed(p + 32 * i + 16, stride, b[i].q + 4);
        for (int g = 0; g < 8; g++) b[i].q[g] = q8_weights(vi_xor(b[i].q[g], top));
    }
}
INLINE void unpack_mlx8_32(block *b, const uint8_t *p, size_t stride) {
    unpack_mlx8(b, p, stride, 1);
}
INLINE void unpack_mlx8_64(block *b, const uint8_t *p, size_t stride) {
    unpack_mlx8(b, p, stride, 2);
}

/* Eight sub-blocks of a Q4_K or Q5_K super-block. */
INLINE void k_scales(block *b, const uint8_t *p, size_t stride) {
    const vi lo = strided_32(p, stride), mid = strided_32(p + 4, stride);
    const vi hi = strided_32(p + 8, stride), six = vi_set1(63), four = vi_set1(15);
    for (int i = 0; i < 4; i++) {
        const vi l = vi_shr_var(lo, 8 * i), m = vi_shr_var(mid, 8 * i), h = vi_shr_var(hi, 8 * i);
        b[i].s0 = vi_and(l, six);
        b[i].s1 = vi_and(m, six);
        b[i + 4].s0 = vi_or(vi_and(h, four), vi_shl(vi_and(vi_shr(l, 6), vi_set1(3)), 4));
        b[i + 4].s1 =
            vi_or(vi_and(vi_shr(h, 4), four), vi_shl(vi_and(vi_shr(m, 6), vi_set1(3)), 4));
    }
}

INLINE void unpack_q45_k(block *b, const uint8_t *p, size_t stride, bool five) {
    const vf d = vf_strided_f16(p, stride);
    const vf m = vf_mul(vf_strided_f16(p + 2, stride), vf_set1(-1.0f));
    const vi low = vi_set1(0x0f0f0f0f), ones = vi_set1(0x01010101);
    vi high[8], t[8];
    k_scales(b, p + 4, stride);
    if (five) {
        load_transposed(p + 16, stride, high);
        load_transposed(p + 32, stride, high + 4);
    }
    for (int pair = 0; pair < 4; pair++) {
        const uint8_t *qs = p + (five ? 48 : 16) + 32 * pair;
        load_transposed(qs, stride, t);
        load_transposed(qs + 16, stride, t + 4);
        for (int half = 0; half < 2; half++) {
            block *o = &b[2 * pair + half];
            o->d = d;
            o->m = m;
            for (int g = 0; g < 8; g++) {
                o->q[g] = vi_and(half ? vi_shr(t[g], 4) : t[g], low);
                if (five) {
                    const vi bit = vi_and(vi_shr_var(high[g], 2 * pair + half), ones);
                    o->q[g] = vi_or(o->q[g], vi_shl(bit, 4));
                }
            }
        }
    }
}
INLINE void unpack_q4_k(block *b, const uint8_t *p, size_t stride) {
    unpack_q45_k(b, p, stride, false);
}
INLINE void unpack_q5_k(block *b, const uint8_t *p, size_t stride) {
    unpack_q45_k(b, p, stride, true);
}

INLINE void unpack_q6_k(block *b, const uint8_t *p, size_t stride) {
    const vf d = vf_strided_f16(p + 208, stride);
    const vi low = vi_set1(0x0f0f0f0f), two = vi_set1(0x03030303);
    for (int half = 0; half < 2; half++) {
        vi ql[2][8], qh[8];
        for (int i = 0; i < 2; i++) {
            load_transposed(p + 64 * half + 32 * i, stride, ql[i]);
            load_transposed(p + 64 * half + 32 * i + 16, stride, ql[i] + 4);
        }
        load_transposed(p + 128 + 32 * half, stride, qh);
        load_transposed(p + 128 + 32 * half + 16, stride, qh + 4);
        const vi scales[2] = {strided_32(p + 192 + 8 * half, stride),
                              strided_32(p + 196 + 8 * half, stride)};
        for (int i = 0; i < 4; i++) {
            block *o = &b[4 * half + i];
            o->d = d;
            o->s0 = vi_sext8(vi_shr_var(scales[i / 2], 16 * (i % 2)));
            o->s1 = vi_sext8(vi_shr_var(scales[i / 2], 16 * (i % 2) + 8));
            for (int g = 0; g < 8; g++) {
                const vi l = vi_and(i / 2 ? vi_shr(ql[i % 2][g], 4) : ql[i % 2][g], low);
                o->q[g] = vi_or(l, vi_shl(vi_and(vi_shr_var(qh[g], 2 * i), two), 4));
            }
        }
    }
}

INLINE int32_t four(const int8_t *q, int g) { return (int32_t)kk_le32(q + 4 * g); }

/* acc + (block . activations), per lane.  The zero point (2^zero_log, or none: 0) enters with
 * the sum of the activations. */
INLINE vf add_block(vf acc, const block *b, const kk_act_block *x, block_kind kind, bool q8,
                    int32_t zero_log) {
    vi lo = vi_set1(0), hi = vi_set1(0);
    int8_t in_pairs[KK_BLOCK];
    const bool paired = kind == AFFINE && !q8;
    const int8_t *q = paired ? in_pairs : x->q;
    if (paired) evens_odds(in_pairs, x->q);
    if (kind == AFFINE && q8) lo = vi_set1(x->minus * ((zero_log ? 1 << zero_log : 0) - 128));
    if (kind == ZERO_POINT && zero_log) lo = vi_shl_var(vi_set1(x->minus), zero_log);
    if (kind == HALF_SCALES) {
        lo = vi_shl_var(vi_set1(x->minus_low), zero_log);
        hi = vi_shl_var(vi_set1(x->minus - x->minus_low), zero_log);
    }
    for (int g = 0; g < 4; g++) {
        const int32_t a = four(q, g), c = four(q, g + 4);
        lo = q8 ? dot4_q8(lo, b->q[g], a) : dot4(lo, b->q[g], a);
        hi = q8 ? dot4_q8(hi, b->q[g + 4], c) : dot4(hi, b->q[g + 4], c);
    }
    const vf xd = vf_set1(x->d), d = vf_mul(b->d, xd);
    if (kind == HALF_SCALES)
        return vf_fma(vf_from_i(vi_add(vi_mul(lo, b->s0), vi_mul(hi, b->s1))), d, acc);
    const vi sum = vi_add(lo, hi);
    if (kind == ZERO_POINT) return vf_fma(vf_from_i(sum), d, acc);
    const vf m = vf_mul(b->m, xd);
    if (kind == FLOAT_MIN || kind == AFFINE) {
        acc = vf_fma(vf_from_i(sum), d, acc);
        return vf_fma(vf_set1((float)-x->minus), m, acc);
    }
    acc = vf_fma(vf_from_i(vi_mul(sum, b->s0)), d, acc);
    return vf_fma(vf_from_i(vi_mul(b->s1, vi_set1(-x->minus))), m, acc);
}

INLINE const kk_act_block *row_of(const kk_strip *s, int32_t r) {
    return s->x.b + (size_t)(s->in_row ? s->in_row[r] : r) * ((size_t)s->n_in / KK_BLOCK);
}
INLINE float *out_of(const kk_strip *s, int32_t r) {
    return s->out + (size_t)(s->out_row ? s->out_row[r] : r) * s->out_stride;
}

/* What is special to a type, known at compile time. */
typedef struct {
    void (*unpack)(block *b, const uint8_t *p, size_t stride);
    size_t bytes, blocks; /* bytes that unpack reads at a time, and blocks that it gives */
    block_kind kind;
    bool q8;
    int32_t zero_log; /* the zero point is 2^zero_log; 0: none */
} quant_type;

INLINE void load_unit(block *b, const kk_strip *s, const quant_type *t, size_t u) {
    t->unpack(b, s->w + u * t->bytes, s->w_stride);
    if (t->kind == AFFINE) affine_scales(b, s, u, t->blocks);
}

/* n <= KK_ROW_TILE rows straight from the weights. */
INLINE void rows_direct(const kk_strip *s, const quant_type *t, int32_t n) {
    const kk_act_block *x[KK_ROW_TILE];
    vf acc[KK_ROW_TILE];
    for (int32_t r = 0; r < n; r++) {
        x[r] = row_of(s, r);
        acc[r] = vf_set1(0);
    }
    const uint8_t *ahead = ahead_of(s);
    const size_t units = (size_t)s->n_in / (t->blocks * KK_BLOCK);
    for (size_t u = 0; u < units; u++) {
        block b[8];
        load_unit(b, s, t, u);
        kk_fetch(ahead + u * KK_STRIP * t->bytes, KK_STRIP * t->bytes);
        for (size_t i = 0; i < t->blocks; i++)
            for (int32_t r = 0; r < n; r++)
                acc[r] = add_block(acc[r], &b[i], x[r]++, t->kind, t->q8, t->zero_log);
    }
    for (int32_t r = 0; r < n; r++) vf_store(out_of(s, r), acc[r]);
}

#ifdef KK_DOT_NIBBLES
/* One row of activations against q4_0: the sums of rows_direct, made with fewer operations. */
static void one_row_q4_0(const kk_strip *s) {
    enum { BYTES = 18, ZERO_LOG = 3 };
    const kk_act_block *x = row_of(s, 0);
    const uint8_t *w = s->w, *ahead = ahead_of(s);
    vf acc = vf_set1(0);
    for (int32_t b = s->n_in / KK_BLOCK; b > 0; b--, x++, w += BYTES, ahead += KK_STRIP * BYTES) {
        const vf d = vf_strided_f16_alone(w, s->w_stride);
        kk_fetch(ahead, KK_STRIP * BYTES);
        const vi zero_point = vi_shl(vi_set1(x->minus), ZERO_LOG);
        const vi sum = dot_nibbles(w + 2, s->w_stride, x->q, zero_point);
        acc = vf_fma(vf_from_i(sum), vf_mul(d, vf_set1(x->d)), acc);
    }
    vf_store(out_of(s, 0), acc);
}
#endif

/* n <= KK_ROW_TILE rows from `first` on, from the strip's blocks in the panel. */
INLINE void rows_panel(const kk_strip *s, const quant_type *t, const block *b, int32_t first,
                       int32_t n) {
    const kk_act_block *x[KK_ROW_TILE];
    vf acc[KK_ROW_TILE];
    for (int32_t r = 0; r < n; r++) {
        x[r] = row_of(s, first + r);
        acc[r] = vf_set1(0);
    }
    const size_t nb = (size_t)s->n_in / KK_BLOCK;
    for (size_t i = 0; i < nb; i++)
        for (int32_t r = 0; r < n; r++)
            acc[r] = add_block(acc[r], &b[i], x[r] + i, t->kind, t->q8, t->zero_log);
    for (int32_t r = 0; r < n; r++) vf_store(out_of(s, first + r), acc[r]);
}

#ifdef KK_WIDE_STRIPS
_Static_assert(KK_Q8_ZERO_LOG > 0, "q8_0 is multiplied as the other types are");

/* Two strips at a time.  Activations are broadcast as they are loaded, once for every dot4 where a
 * strip is alone: then the ports for loads are as busy as those that multiply, and the weights' own
 * loads come on top.  Two strips share them. */

/* A few rows against a block of either strip; sums[r][k]: of row r and strip k. */
INLINE void add_blocks(vf sums[][2], const block *b, const kk_act_block *const *x, int32_t n,
                       const quant_type *t) {
    vi dots[KK_ROW_TILE][2];
#pragma GCC unroll 8
    for (int32_t r = 0; r < n; r++)
        dots[r][0] = dots[r][1] = vi_shl_var(vi_set1(x[r]->minus), t->zero_log);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        const vi w0 = b[0].q[g], w1 = b[1].q[g];
#pragma GCC unroll 8
        for (int32_t r = 0; r < n; r++) {
            const vi a = vi_held(vi_set1(four(x[r]->q, g)));
            dots[r][0] = vi_dot4(dots[r][0], w0, a);
            dots[r][1] = vi_dot4(dots[r][1], w1, a);
        }
    }
#pragma GCC unroll 8
    for (int32_t r = 0; r < n; r++) {
        const vf d = vf_set1(x[r]->d);
#pragma GCC unroll 2
        for (int k = 0; k < 2; k++)
            sums[r][k] = vf_fma(vf_from_i(dots[r][k]), vf_mul(b[k].d, d), sums[r][k]);
    }
}

/* n <= KK_ROW_TILE rows straight from the weights. */
INLINE void rows_wide(const kk_strip *s, const quant_type *t, int32_t n) {
    const kk_act_block *x[KK_ROW_TILE];
    vf sums[KK_ROW_TILE][2];
    for (int32_t r = 0; r < n; r++) {
        x[r] = row_of(s, r);
        sums[r][0] = sums[r][1] = vf_set1(0);
    }
    const uint8_t *ahead = ahead_of(s), *w = s->w;
    const size_t step = KK_WIDE * t->bytes;
    const int32_t some = n > 4 ? (n + 1) / 2 : n; /* rows whose dots have registers */
    for (int32_t i = s->n_in / KK_BLOCK; i > 0; i--, w += t->bytes, ahead += step) {
        block b[2];
        t->unpack(&b[0], w, s->w_stride);
        t->unpack(&b[1], w + KK_STRIP * s->w_stride, s->w_stride);
        kk_fetch(ahead, step);
        add_blocks(sums, b, x, some, t);
        if (some < n) add_blocks(sums + some, b, x + some, n - some, t);
        for (int32_t r = 0; r < n; r++) x[r]++;
    }
    for (int32_t r = 0; r < n; r++) {
        vf_store(out_of(s, r), sums[r][0]);
        vf_store(out_of(s, r) + KK_STRIP, sums[r][1]);
    }
}
#endif

/* The row count is a constant inside each case, so that the rows' sums stay in registers. */
#if KK_ROW_TILE == 8
#define ROW_CASES(n, call)                                                                         \
    switch (n) {                                                                                   \
    case 1: call(1); break;                                                                        \
    case 2: call(2); break;                                                                        \
    case 3: call(3); break;                                                                        \
    case 4: call(4); break;                                                                        \
    case 5: call(5); break;                                                                        \
    case 6: call(6); break;                                                                        \
    case 7: call(7); break;                                                                        \
    default: call(8); break;                                                                       \
    }
#else
#define ROW_CASES(n, call)                                                                         \
    switch (n) {                                                                                   \
    case 1: call(1); break;                                                                        \
    case 2: call(2); break;                                                                        \
    case 3: call(3); break;                                                                        \
    default: call(4); break;                                                                       \
    }
#endif

INLINE void strip_quantized(const kk_strip *s, const quant_type *t) {
#ifdef KK_WIDE_STRIPS
    if (t->kind == ZERO_POINT && s->n_out == KK_WIDE) {
        assert(s->n_rows <= KK_ROW_TILE);
#define WIDE(n) rows_wide(s, t, n)
        ROW_CASES(s->n_rows, WIDE)
#undef WIDE
        return;
    }
#endif
    if (s->n_rows <= KK_ROW_TILE) {
#define DIRECT(n) rows_direct(s, t, n)
        ROW_CASES(s->n_rows, DIRECT)
#undef DIRECT
        return;
    }
    block *panel = s->panel;
    const uint8_t *ahead = ahead_of(s);
    const size_t units = (size_t)s->n_in / (t->blocks * KK_BLOCK);
    for (size_t u = 0; u < units; u++) {
        load_unit(panel + u * t->blocks, s, t, u);
        kk_fetch(ahead + u * KK_STRIP * t->bytes, KK_STRIP * t->bytes);
    }
    for (int32_t r = 0; r < s->n_rows; r += KK_ROW_TILE) {
#define PANEL(n) rows_panel(s, t, panel, r, n)
        ROW_CASES(s->n_rows - r, PANEL)
#undef PANEL
    }
}

#define QUANT_STRIP(name, ...)                                                                     \
    static void strip_##name(const kk_strip *s) {                                                  \
        static const quant_type t = {unpack_##name, __VA_ARGS__};                                  \
        strip_quantized(s, &t);                                                                    \
    }
QUANT_STRIP(transposed_q4_0, 18, 1, ZERO_POINT, false, 3)
static void strip_q4_0(const kk_strip *s) {
#ifdef KK_DOT_NIBBLES
    if (s->n_rows == 1) {
        one_row_q4_0(s);
        return;
    }
#endif
    strip_transposed_q4_0(s);
}
QUANT_STRIP(q5_0, 22, 1, ZERO_POINT, false, 4)
QUANT_STRIP(q5_1, 24, 1, FLOAT_MIN, false, 0)
QUANT_STRIP(q8_0, 34, 1, ZERO_POINT, true, KK_Q8_ZERO_LOG)
QUANT_STRIP(q4_k, 144, 8, INT_MIN_SCALE, false, 0)
QUANT_STRIP(q5_k, 176, 8, INT_MIN_SCALE, false, 0)
QUANT_STRIP(q6_k, 210, 8, HALF_SCALES, false, 5)
QUANT_STRIP(mlx4_32, 16, 1, AFFINE, false, 0)
QUANT_STRIP(mlx4_64, 32, 2, AFFINE, false, 0)
QUANT_STRIP(mlx8_32, 32, 1, AFFINE, true, KK_Q8_ZERO_LOG)
QUANT_STRIP(mlx8_64, 64, 2, AFFINE, true, KK_Q8_ZERO_LOG)

/* ---- weights unpacked ahead --------------------------------------------------------------- */

/* Strips lie in pairs, block by block, so that two of them share the activations they meet. */
INLINE block *unpacked_at(const kk_strip *s, int32_t strip) {
    return (block *)s->panel + (size_t)(strip / 2 * 2) * ((size_t)s->n_in / KK_BLOCK) + strip % 2;
}

static const quant_type unpacked_type = {unpack_q8_0, 34, 1, ZERO_POINT, true, KK_Q8_ZERO_LOG};

static void unpack(const kk_strip *s, int32_t at) {
    assert(kk_unpacks(s->dtype));
    block *to = unpacked_at(s, at);
    const uint8_t *w = s->w;
    for (int32_t i = s->n_in / KK_BLOCK; i > 0; i--, to += 2, w += unpacked_type.bytes)
        unpacked_type.unpack(to, w, s->w_stride);
}

/* n rows from `first` on against one strip or, with KK_WIDE_STRIPS, two; b: their blocks. */
INLINE void rows_unpacked(const kk_strip *s, const block *b, int32_t out, int32_t first, int32_t n,
                          int32_t strips) {
    const kk_act_block *x[KK_UNPACKED_ROWS];
    vf sums[KK_UNPACKED_ROWS][2];
    for (int32_t r = 0; r < n; r++) {
        x[r] = row_of(s, first + r);
        sums[r][0] = sums[r][1] = vf_set1(0);
    }
    for (int32_t i = s->n_in / KK_BLOCK; i > 0; i--, b += 2) {
#ifdef KK_WIDE_STRIPS
        if (strips == 2) add_blocks(sums, b, x, n, &unpacked_type);
#endif
        for (int32_t r = 0; r < n; r++) {
            if (strips == 1)
                sums[r][0] = add_block(sums[r][0], b, x[r], ZERO_POINT, true, KK_Q8_ZERO_LOG);
            x[r]++;
        }
    }
    for (int32_t r = 0; r < n; r++)
        for (int32_t k = 0; k < strips; k++)
            vf_store(out_of(s, first + r) + out + KK_STRIP * k, sums[r][k]);
}

INLINE void all_rows_unpacked(const kk_strip *s, int32_t at, int32_t strips) {
    const block *b = unpacked_at(s, at);
    int32_t r = 0;
    for (; r + KK_UNPACKED_ROWS <= s->n_rows; r += KK_UNPACKED_ROWS)
        rows_unpacked(s, b, at * KK_STRIP, r, KK_UNPACKED_ROWS, strips);
    for (; r + 2 <= s->n_rows; r += 2) rows_unpacked(s, b, at * KK_STRIP, r, 2, strips);
    if (r < s->n_rows) rows_unpacked(s, b, at * KK_STRIP, r, 1, strips);
}

static void unpacked(const kk_strip *s) {
    int32_t at = 0;
#ifdef KK_WIDE_STRIPS
    for (; (at + 2) * KK_STRIP <= s->n_out; at += 2) all_rows_unpacked(s, at, 2);
#endif
    for (; at * KK_STRIP < s->n_out; at++) all_rows_unpacked(s, at, 1);
}

/* ---- float weights ---------------------------------------------------------------------- */

INLINE vf load_weights(const uint8_t *w, size_t i, kk_dtype t) {
    if (t == KK_F32) return vf_load((const float *)(const void *)(w + 4 * i));
    return t == KK_F16 ? vf_load_f16(w + 2 * i) : vf_load_bf16(w + 2 * i);
}

/* The n <= 15 elements from i on, zero above. */
INLINE vf load_weights_n(const uint8_t *w, size_t i, int32_t n, kk_dtype t) {
    uint8_t tail[64] = {0};
    const size_t size = t == KK_F32 ? 4 : 2;
    memcpy(tail, w + size * i, size * (size_t)n);
    return load_weights(tail, 0, t);
}

/* no outputs by nr rows, at most KK_CHAINS sums, which are finished together.  Loops over rows and
 * outputs are unrolled before anything else is done to them, so that the sums stay in registers. */
INLINE void tile_float(const kk_strip *s, int32_t o, int32_t no, int32_t r, int32_t nr,
                       kk_dtype t) {
    const uint8_t *w = s->w + (size_t)o * s->w_stride;
    const uint8_t *ahead = ahead_of(s) + (size_t)o * s->w_stride;
    const float *x[KK_FLOAT_ROWS];
    vf acc[KK_CHAINS], xv[KK_FLOAT_ROWS];
    float sums[KK_CHAINS];
#pragma GCC unroll 16
    for (int32_t i = 0; i < KK_CHAINS; i++) acc[i] = vf_set1(0);
#pragma GCC unroll 16
    for (int32_t c = 0; c < nr; c++)
        x[c] = s->x.f + (size_t)(s->in_row ? s->in_row[r + c] : r + c) * (size_t)s->n_in;
    const int32_t whole = s->n_in - s->n_in % KK_LANES, left = s->n_in - whole;
    const size_t step = (size_t)(no * KK_LANES) * (t == KK_F32 ? 4u : 2u);
    for (int32_t i = 0; i < whole; i += KK_LANES, ahead += step) {
        if (r == 0) kk_fetch(ahead, step);
#pragma GCC unroll 16
        for (int32_t c = 0; c < nr; c++) xv[c] = vf_held(vf_load(x[c] + i));
#pragma GCC unroll 16
        for (int32_t a = 0; a < no; a++) {
            const vf wv = load_weights(w + (size_t)a * s->w_stride, (size_t)i, t);
#pragma GCC unroll 16
            for (int32_t c = 0; c < nr; c++) acc[c * no + a] = vf_fma(xv[c], wv, acc[c * no + a]);
        }
    }
#pragma GCC unroll 16
    for (int32_t a = 0; left && a < no; a++) {
        const vf wv = load_weights_n(w + (size_t)a * s->w_stride, (size_t)whole, left, t);
#pragma GCC unroll 16
        for (int32_t c = 0; c < nr; c++)
            acc[c * no + a] = vf_fma(vf_load_n(x[c] + whole, left), wv, acc[c * no + a]);
    }
    finish_sums(no == KK_CHAINS ? out_of(s, r) + o : sums, acc, 1);
#pragma GCC unroll 16
    for (int32_t c = 0; no < KK_CHAINS && c < nr; c++)
        memcpy(out_of(s, r + c) + o, sums + c * no, (size_t)no * sizeof *sums);
}

/* nr rows against the whole strip; few rows take many outputs at a time.  Routers have fewer
 * outputs than a strip. */
INLINE void rows_float(const kk_strip *s, int32_t r, int32_t nr, kk_dtype t) {
    const int32_t no = nr == 1   ? KK_CHAINS
                       : nr == 2 ? KK_CHAINS / 2
                       : nr <= 4 ? KK_CHAINS / 4
                                 : KK_CHAINS / 8;
    int32_t o = 0;
    for (; o + no <= s->n_out; o += no) tile_float(s, o, no, r, nr, t);
    for (; 4 * nr <= KK_CHAINS && o + 4 <= s->n_out; o += 4) tile_float(s, o, 4, r, nr, t);
    for (; o < s->n_out; o++) tile_float(s, o, 1, r, nr, t);
}

/* Four rows at a time keep the multipliers busy.  A fifth comes along where there are registers
 * for it: alone it would cost as much as two. */
INLINE void strip_float(const kk_strip *s, kk_dtype t) {
    int32_t r = 0;
    for (; s->n_rows - r == 4 || s->n_rows - r > KK_FLOAT_ROWS; r += 4) rows_float(s, r, 4, t);
    switch (s->n_rows - r) {
    case 1: rows_float(s, r, 1, t); break;
    case 2: rows_float(s, r, 2, t); break;
    case 3: rows_float(s, r, 3, t); break;
#if KK_FLOAT_ROWS > 4
    case 5: rows_float(s, r, 5, t); break;
#endif
    default: break;
    }
}

static void strip_f32(const kk_strip *s) { strip_float(s, KK_F32); }
static void strip_f16(const kk_strip *s) { strip_float(s, KK_F16); }
static void strip_bf16(const kk_strip *s) { strip_float(s, KK_BF16); }

/* Two rows gain nothing by it; many rows take weights that were unpacked once for all of them,
 * and do not wait for loads. */
static bool wide(kk_dtype t, int32_t n_rows) {
#ifdef KK_WIDE_STRIPS
    return n_rows > 2 && n_rows <= KK_ROW_TILE && (t == KK_Q4_0 || t == KK_Q5_0 || t == KK_Q8_0);
#else
    (void)t, (void)n_rows;
    return false;
#endif
}

/* One strip after the other. */
static void strip(const kk_strip *s);
static void strip_halves(const kk_strip *s) {
    kk_strip half = *s;
    half.n_out = KK_STRIP;
    strip(&half);
    half.n_out = s->n_out - KK_STRIP;
    half.w += KK_STRIP * s->w_stride;
    if (half.ahead) half.ahead += KK_STRIP * s->w_stride;
    if (half.planes.scales) {
        half.planes.scales += KK_STRIP * s->plane_stride;
        half.planes.biases += KK_STRIP * s->plane_stride;
    }
    half.out += KK_STRIP;
    strip(&half);
}

static void strip(const kk_strip *s) {
    static void (*const by_type[KK_DTYPES])(const kk_strip *) = {
        [KK_F32] = strip_f32,         [KK_F16] = strip_f16,         [KK_BF16] = strip_bf16,
        [KK_Q8_0] = strip_q8_0,       [KK_Q4_0] = strip_q4_0,       [KK_Q5_0] = strip_q5_0,
        [KK_Q5_1] = strip_q5_1,       [KK_Q4_K] = strip_q4_k,       [KK_Q5_K] = strip_q5_k,
        [KK_Q6_K] = strip_q6_k,       [KK_MLX4_32] = strip_mlx4_32, [KK_MLX4_64] = strip_mlx4_64,
        [KK_MLX8_32] = strip_mlx8_32, [KK_MLX8_64] = strip_mlx8_64,
    };
    if (s->n_out > KK_STRIP && (s->n_out < KK_WIDE || !wide(s->dtype, s->n_rows)))
        strip_halves(s);
    else if (s->n_out % KK_STRIP == 0 || !kk_dtype_is_quant(s->dtype))
        by_type[s->dtype](s);
    else
        kk_kernels_reference.strip(s); /* the same bits, and only ever the last strip */
}

#include "backend/cpu/kv_body.h"
/* kv_body.h comes first: attention reads rows through it. */
#include "backend/cpu/attend_body.h"
#include "backend/cpu/latent_body.h"

const kk_kernels KK_KERNELS = {
    .name = KK_KERNELS_NAME,
    .quantize = quantize,
#ifdef KK_BF16_LARGEST
    .quantize_bf16 = quantize_bf16,
#endif
    .strip = strip,
    .unpack = unpack,
    .unpacked = unpacked,
    .wide = wide,
    .attend = attend,
    .in_place = KK_HEAD_TILE,
    .widen = widen,
    .dots = dots,
    .dots_bf16 = dots_bf16,
    .weigh = weigh,
    .sums = sums,
    .keys = keys,
    .inv_rms = inv_rms,
    .floats = floats,
    .norm = norm,
    .rotate = rotate,
    .angles = kk_angles_row,
    .glu = glu,
    .add_scale = add_scale,
    .axpy = axpy,
    .softcap = softcap,
    .largest = largest,
    .put = put,
};
