/* latent_body.h - attention over rows that are read in latent space, for kernels_body.h: the
 * products, weights and sums of reference.c, with tiles of queries that read the same rows.  See
 * cpu_latent.c for what they add up to. */

static void dots(float *s, const float *q, const float *k, int32_t n, int32_t n_q, int32_t n_k) {
    score_all(s, q, (steps){(size_t)n, KK_PAGE_ROWS, 1}, k, n, n_q, n_k, 1);
}

static void dots_bf16(float *s, const float *q, const uint8_t *k, int32_t n, int32_t n_q,
                      int32_t n_k) {
    const stored rows = {.codes = k, .d = n};
    score_as_stored(KK_KV_BF16, s, q, (steps){(size_t)n, KK_PAGE_ROWS, 1}, &rows,
                    (row_range){0, n_k}, n_q, 1);
}

static void weigh(const kk_weighing *w) {
    float *s = w->score;
    const vf scale = vf_set1(w->scale);
    for (int32_t j = 0; j < KK_PAGE_ROWS; j += KK_LANES) {
        vf x = vf_load(s + j);
        if (w->more) x = vf_add(x, vf_load(w->more + j));
        vf_store(s + j, vf_mul(vf_mul(x, vf_load(w->key + j)), scale));
    }
    for (int32_t j = 0; j < w->lo; j++) s[j] = -INFINITY;
    for (int32_t j = w->hi; j < KK_PAGE_ROWS; j++) s[j] = -INFINITY;
    weigh_row(s, w->m, w->c, w->lane, (kk_page_visible){w->lo, w->hi, w->hi, w->hi});
    for (int32_t j = 0; j < KK_PAGE_ROWS; j += KK_LANES)
        vf_store(s + j, vf_mul(vf_load(s + j), vf_load(w->value + j)));
}

/* `parts` registers of values from i on, of `accs` sums; left: how many values the last has. */
INLINE void sum_tile(const kk_sums *s, int32_t p, int32_t i, int32_t accs, int32_t parts,
                     int32_t left) {
    vf a[MOST_QUERIES][4];
    const bool tail = left < KK_LANES;
    float *acc = s->acc + (size_t)p * s->acc_stride + i;
    const float *x = s->x + i, *w = s->w + p * KK_PAGE_ROWS;
    for (int32_t h = 0; h < accs; h++)
        for (int32_t k = 0; k < parts; k++) {
            const float *at = acc + (size_t)h * s->acc_stride + KK_LANES * k;
            a[h][k] = vf_mul(tail ? vf_load_n(at, left) : vf_load(at), vf_set1(s->c[p + h]));
        }
    for (int32_t j = 0; j < s->n_x; j++, x += s->x_stride) {
        vf v[4];
        for (int32_t k = 0; k < parts; k++)
            v[k] = tail ? vf_load_n(x, left) : vf_load(x + KK_LANES * k);
        for (int32_t h = 0; h < accs; h++) {
            const vf wj = vf_set1(w[h * KK_PAGE_ROWS + j]);
            for (int32_t k = 0; k < parts; k++) a[h][k] = vf_fma(wj, v[k], a[h][k]);
        }
    }
    for (int32_t h = 0; h < accs; h++)
        for (int32_t k = 0; k < parts; k++) {
            float *at = acc + (size_t)h * s->acc_stride + KK_LANES * k;
            if (tail)
                vf_store_n(at, a[h][k], left);
            else
                vf_store(at, a[h][k]);
        }
}

INLINE void sum_accs(const kk_sums *s, int32_t p, int32_t accs) {
    int32_t i = 0;
    for (; i + 4 * KK_LANES <= s->n; i += 4 * KK_LANES) sum_tile(s, p, i, accs, 4, KK_LANES);
    for (; i + KK_LANES <= s->n; i += KK_LANES) sum_tile(s, p, i, accs, 1, KK_LANES);
    if (i < s->n) sum_tile(s, p, i, accs, 1, s->n - i);
}

static void sums(const kk_sums *s) {
    int32_t p = 0;
    if (s->bf16) {
        const stored rows = {.codes = s->bf16, .d = s->n};
        add_in_place(KK_KV_BF16, s->acc, s->c, s->w, (steps){s->acc_stride, KK_PAGE_ROWS, 1}, &rows,
                     (row_range){0, s->n_x}, s->n_acc);
        return;
    }
    for (; p + KK_HEAD_TILE <= s->n_acc; p += KK_HEAD_TILE) sum_accs(s, p, KK_HEAD_TILE);
    for (; KK_HEAD_TILE > 2 && p + 2 <= s->n_acc; p += 2) sum_accs(s, p, 2);
    for (; p < s->n_acc; p++) sum_accs(s, p, 1);
}

/* One row of keys, times w and rotated in one pass. */
INLINE void rotate_key(float *x, const float *w, const float *cs, int32_t half, int32_t n_rot) {
    float *y = x + half, *x_rest = x + n_rot, *y_rest = y + n_rot;
    const float *v = w + half, *sn = cs + n_rot, *w_rest = w + n_rot, *v_rest = v + n_rot;
    EACH_LANES(n_rot, {
        const vf a = vf_mul(V(x), V(w)), b = vf_mul(V(y), V(v)), c = V(cs), s = V(sn);
        SET(x, vf_fnma(b, s, vf_mul(a, c)));
        SET(y, vf_fma(a, s, vf_mul(b, c)));
    });
    EACH_LANES(half - n_rot, {
        SET(x_rest, vf_mul(V(x_rest), V(w_rest)));
        SET(y_rest, vf_mul(V(y_rest), V(v_rest)));
    });
}

static void keys(const kk_keys *k) {
    float *x = k->x;
    for (int32_t j = 0; j < k->n; j++, x += k->dim) {
        if (k->inv) k->inv[j] = 1.0f / sqrtf(dot_lanes(x, x, k->dim) / (float)k->dim + k->eps);
        rotate_key(x, k->w, k->cs + (size_t)j * 2 * (size_t)k->n_rot, k->dim / 2, k->n_rot);
    }
}

static void floats(kk_dtype t, const uint8_t *src, float *dst, size_t n) {
    if (t != KK_Q8_0) {
        kk_dequantize(t, src, dst, n);
        return;
    }
    for (size_t i = 0; i < n; i += KK_BLOCK, src += 2 + KK_BLOCK) {
        const vf d = vf_set1(kk_f16_f32(kk_le16(src)));
        for (int k = 0; k < KK_BLOCK; k += KK_LANES)
            vf_store(dst + i + k, vf_mul(d, vf_from_i(vi_sext8(vi_load_u8(src + 2 + k)))));
    }
}
