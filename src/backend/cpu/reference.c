/* reference.c - the kernels in plain C: the definition of the arithmetic of kernels.h.
 *
 * Nothing here is tuned.  The vector kernels are tested against these functions for equality of
 * bits, and fall back to them for shapes off their tiles, which changes no result. */
#include "backend/angles.h"
#include "backend/cpu/kernels.h"
#include "core/codes.h"
#include "core/mathf.h"
#include "core/span.h"

static float dot(const float *a, const float *b, int32_t n) {
    float lane[KK_LANES] = {0};
    for (int32_t i = 0; i < n; i++) lane[i % KK_LANES] = fmaf(a[i], b[i], lane[i % KK_LANES]);
    return kk_lanes_sum(lane);
}

static void quantize(const float *x, size_t n, kk_act_block *b) {
    for (size_t k = 0; k < n / KK_BLOCK; k++, x += KK_BLOCK, b++) {
        float amax = 0, sound = 0; /* sound stays 0 while all values are finite */
        for (int i = 0; i < KK_BLOCK; i++) {
            amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
            sound += x[i] - x[i];
        }
        kk_act_empty(b, amax + sound);
        if (!(amax + sound >= KK_ACT_LEAST)) continue;
        const float inv = 127.0f / amax;
        for (int i = 0; i < KK_BLOCK; i++) {
            b->q[i] = (int8_t)rintf(x[i] * inv);
            b->minus -= b->q[i];
            if (i < 16) b->minus_low -= b->q[i];
        }
    }
}

/* ---- quantised weights ------------------------------------------------------------------ */

/* Block i of output o of a strip of affine codes. */
static void unpack_affine(kk_codes *b, const kk_strip *s, int32_t o, size_t i) {
    const size_t group = i * KK_BLOCK / (size_t)kk_dtype_get(s->dtype)->values;
    const size_t width = (size_t)kk_dtype_get(s->planes.type)->bytes;
    const size_t at = (size_t)o * s->plane_stride + group * width;
    const int32_t bits = kk_affine_bits(s->dtype);
    const uint8_t *q = s->w + (size_t)o * s->w_stride + i * KK_BLOCK * (size_t)bits / 8;
    kk_dequantize(s->planes.type, s->planes.scales + at, &b->d, 1);
    kk_dequantize(s->planes.type, s->planes.biases + at, &b->m, 1);
    b->scale[0] = b->scale[1] = b->min = 1;
    for (int k = 0; k < KK_BLOCK; k++) b->q[k] = bits == 4 ? (q[k / 2] >> (k % 2 * 4)) & 15 : q[k];
}

static float dot_quantized(const kk_strip *s, int32_t o, size_t row) {
    const size_t nb = (size_t)s->n_in / KK_BLOCK;
    const kk_act_block *x = s->x.b + row * nb;
    const bool affine = kk_dtype_is_affine(s->dtype);
    const bool has_min =
        affine || s->dtype == KK_Q5_1 || s->dtype == KK_Q4_K || s->dtype == KK_Q5_K;
    float acc = 0;
    for (size_t i = 0; i < nb; i++, x++) {
        kk_codes b;
        if (affine)
            unpack_affine(&b, s, o, i);
        else
            kk_codes_read(&b, s->dtype, s->w + (size_t)o * s->w_stride, (int32_t)i);
        int32_t half[2] = {0, 0};
        for (int k = 0; k < KK_BLOCK; k++) half[k / 16] += b.q[k] * x->q[k];
        const int32_t sum = half[0] * b.scale[0] + half[1] * b.scale[1];
        acc = fmaf((float)sum, b.d * x->d, acc);
        if (has_min) acc = fmaf((float)(b.min * -x->minus), b.m * x->d, acc);
    }
    return acc;
}

/* ---- float weights ---------------------------------------------------------------------- */

static float dot_stored(const kk_strip *s, const uint8_t *w, const float *x) {
    float lane[KK_LANES] = {0};
    for (int32_t i = 0; i < s->n_in; i++) {
        float v;
        switch (s->dtype) {
        case KK_F32: memcpy(&v, w + 4 * (size_t)i, 4); break;
        case KK_F16: v = kk_f16_f32(kk_le16(w + 2 * (size_t)i)); break;
        default: v = kk_bf16_f32(kk_le16(w + 2 * (size_t)i)); break;
        }
        lane[i % KK_LANES] = fmaf(x[i], v, lane[i % KK_LANES]);
    }
    return kk_lanes_sum(lane);
}

static void strip(const kk_strip *s) {
    const bool quant = kk_dtype_is_quant(s->dtype);
    for (int32_t r = 0; r < s->n_rows; r++) {
        const size_t in = (size_t)(s->in_row ? s->in_row[r] : r);
        float *out = s->out + (size_t)(s->out_row ? s->out_row[r] : r) * s->out_stride;
        for (int32_t o = 0; o < s->n_out; o++) {
            const uint8_t *w = s->w + (size_t)o * s->w_stride;
            out[o] =
                quant ? dot_quantized(s, o, in) : dot_stored(s, w, s->x.f + in * (size_t)s->n_in);
        }
    }
}

static bool wide(kk_dtype t, int32_t n_rows) {
    (void)t, (void)n_rows;
    return false;
}

/* ---- rows ------------------------------------------------------------------------------- */

static float inv_rms(const float *x, int32_t n, float eps) {
    return 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);
}

static void norm(float *y, const float *x, const float *w, int32_t n, float eps) {
    const float inv = inv_rms(x, n, eps);
    for (int32_t i = 0; i < n; i++) y[i] = w ? (x[i] * inv) * w[i] : x[i] * inv;
}

static void rotate(float *x, const float *cs, int32_t n, int32_t n_rot) {
    for (int32_t i = 0; i < n_rot; i++) {
        const float a = x[i], b = x[i + n / 2], c = cs[i], s = cs[n_rot + i];
        x[i] = fmaf(-b, s, a * c);
        x[i + n / 2] = fmaf(a, s, b * c);
    }
}

static void glu(float *y, const float *gate, const float *up, int32_t n, kk_activation act) {
    for (int32_t i = 0; i < n; i++)
        y[i] = (act == KK_SILU ? kk_silu(gate[i]) : kk_gelu(gate[i])) * up[i];
}

static void add_scale(float *y, const float *a, int32_t n, float scale) {
    for (int32_t i = 0; i < n; i++) y[i] = (y[i] + a[i]) * scale;
}

static void axpy(float *y, float w, const float *x, int32_t n) {
    for (int32_t i = 0; i < n; i++) y[i] = fmaf(w, x[i], y[i]);
}

static int32_t largest(const float *x, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best] || (isnan(x[best]) && !isnan(x[i]))) best = i;
    return best;
}

static void softcap(float *x, int32_t n, float cap) {
    for (int32_t i = 0; i < n; i++) x[i] = kk_softcap(x[i], cap);
}

/* ---- K/V rows --------------------------------------------------------------------------- */

static void put(kk_kv_format f, const float *x, int32_t head_dim, uint8_t *head, int32_t row) {
    kk_kv_format_get(f)->pack(x, head_dim, head, kk_kv_row_place(f, head_dim, KK_PAGE_ROWS, row));
}

/* Row j of a page's head as floats. */
static void load_row(float *dst, kk_kv_format f, int32_t head_dim, const uint8_t *head, int32_t j) {
    kk_kv_format_get(f)->unpack(dst, head_dim, head, kk_kv_row_place(f, head_dim, KK_PAGE_ROWS, j));
}

static void widen(float *y, kk_kv_format f, int32_t head_dim, const uint8_t *head, int32_t lo,
                  int32_t n) {
    for (int32_t j = 0; j < n; j++)
        load_row(y + (size_t)j * (size_t)head_dim, f, head_dim, head, lo + j);
}

/* ---- attention -------------------------------------------------------------------------- */

/* pos: the row's place in the table of angles. */
static void load_key(float *k, const kk_attend_tile *t, const uint8_t *page, int32_t j,
                     int64_t pos) {
    if (!t->k_eq_v) {
        load_row(k, t->format, t->head_dim, page + t->k_off, j);
        return;
    }
    load_row(k, t->format, t->head_dim, page + t->v_off, j);
    for (int32_t i = 0; i < t->head_dim; i++) k[i] = k[i] * t->k_norm[i];
    rotate(k, t->rope_pos + (size_t)pos * (size_t)t->n_rot * 2, t->head_dim, t->n_rot);
}

static bool seen(kk_page_visible s, int32_t j) {
    return j >= s.lo && j < s.hi && !(j >= s.hole && j < s.hole_end);
}

static void attend_page(const kk_attend_tile *t, const float *q, float *acc, float *m, float *lane,
                        int64_t page, kk_page_visible visible) {
    float s[KK_PAGE_ROWS], row[KK_MAX_HEAD_DIM], top = *m;
    const int64_t at = page - t->page_base;
    const uint8_t *data = t->pages[at];
    for (int32_t j = 0; j < KK_PAGE_ROWS; j++) {
        if (!seen(visible, j)) continue;
        load_key(row, t, data, j, at * KK_PAGE_ROWS + j);
        s[j] = dot(q, row, t->head_dim) * t->scale;
        top = s[j] > top ? s[j] : top;
    }
    const float c = kk_exp(*m - top);
    *m = top;
    for (int i = 0; i < KK_LANES; i++) lane[i] *= c;
    for (int32_t i = 0; i < t->head_dim; i++) acc[i] *= c;
    for (int32_t j = 0; j < KK_PAGE_ROWS; j++) {
        if (!seen(visible, j)) continue;
        const float p = kk_exp(s[j] - top);
        lane[j % KK_LANES] += p;
        load_row(row, t->format, t->head_dim, data + t->v_off, j);
        axpy(acc, p, row, t->head_dim);
    }
}

/* One (row, head) over the pages of this call. */
static void attend_pair(const kk_attend_tile *t, int32_t row, int32_t head, float *m, float *lane) {
    const size_t at = (size_t)row * t->q_stride + (size_t)head * (size_t)t->head_dim;
    const kk_visible visible = kk_tile_sees(t, row);
    float *acc = t->out + at;
    if (t->starts) {
        *m = -INFINITY;
        for (int i = 0; i < KK_LANES; i++) lane[i] = 0;
        for (int32_t i = 0; i < t->head_dim; i++) acc[i] = 0;
    }
    for (int64_t page = kk_visible_first_page(visible); page * KK_PAGE_ROWS < visible.to;
         page = kk_visible_next_page(visible, page))
        if (!t->page_to || (page >= t->page_from && page < t->page_to))
            attend_page(t, t->q + at, acc, m, lane, page, kk_visible_in_page(visible, page));
    if (!t->ends) return;
    const float inv = 1.0f / kk_lanes_sum(lane);
    for (int32_t i = 0; i < t->head_dim; i++) acc[i] *= inv;
}

static void attend(const kk_attend_tile *t) {
    float *lane = t->state, *m = lane + (size_t)(t->n_rows * t->n_group) * KK_LANES;
    for (int32_t r = 0; r < t->n_rows; r++)
        for (int32_t h = 0; h < t->n_group; h++, lane += KK_LANES, m++)
            attend_pair(t, r, h, m, lane);
}

/* ---- attention over latents ------------------------------------------------------------- */

static void dots(float *s, const float *q, const float *k, int32_t n, int32_t n_q, int32_t n_k) {
    for (int32_t p = 0; p < n_q; p++)
        for (int32_t j = 0; j < n_k; j++)
            s[p * KK_PAGE_ROWS + j] = dot(q + (size_t)p * (size_t)n, k + (size_t)j * (size_t)n, n);
}

static void weigh(const kk_weighing *w) {
    float top = *w->m;
    for (int32_t j = w->lo; j < w->hi; j++) {
        const float s = w->more ? w->score[j] + w->more[j] : w->score[j];
        w->score[j] = s * w->key[j] * w->scale;
        top = w->score[j] > top ? w->score[j] : top;
    }
    *w->c = kk_exp(*w->m - top);
    *w->m = top;
    for (int i = 0; i < KK_LANES; i++) w->lane[i] *= *w->c;
    for (int32_t j = w->lo; j < w->hi; j++) {
        const float p = kk_exp(w->score[j] - top);
        w->lane[j % KK_LANES] += p;
        w->score[j] = p * w->value[j];
    }
}

static void sums(const kk_sums *s) {
    for (int32_t p = 0; p < s->n_acc; p++) {
        float *acc = s->acc + (size_t)p * s->acc_stride;
        for (int32_t i = 0; i < s->n; i++) acc[i] *= s->c[p];
        for (int32_t j = 0; j < s->n_x; j++)
            axpy(acc, s->w[p * KK_PAGE_ROWS + j], s->x + (size_t)j * s->x_stride, s->n);
    }
}

static void keys(const kk_keys *k) {
    float *x = k->x;
    for (int32_t j = 0; j < k->n; j++, x += k->dim) {
        if (k->inv) k->inv[j] = inv_rms(x, k->dim, k->eps);
        for (int32_t i = 0; i < k->dim; i++) x[i] *= k->w[i];
        rotate(x, k->cs + (size_t)j * 2 * (size_t)k->n_rot, k->dim, k->n_rot);
    }
    if (k->n_q) dots(k->score, k->q, k->x, k->dim, k->n_q, k->n);
}

static void floats(kk_dtype t, const uint8_t *src, float *dst, size_t n) {
    kk_dequantize(t, src, dst, n);
}

const kk_kernels kk_kernels_reference = {
    .name = "reference",
    .quantize = quantize,
    .strip = strip,
    .wide = wide,
    .attend = attend,
    .widen = widen,
    .dots = dots,
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
