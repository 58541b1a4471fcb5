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

/* 1 / rms of `rows` rows side by side, so that their sums are finished together. */
INLINE void inv_of_rows(const kk_keys *k, int32_t first, int32_t rows) {
    const float *x = k->x + (size_t)first * (size_t)k->dim;
    vf acc[KK_CHAINS];
    float sums[KK_CHAINS];
    UNROLL
    for (int32_t j = 0; j < KK_CHAINS; j++) acc[j] = vf_set1(0);
    for (int32_t i = 0; i < k->dim; i += KK_LANES) {
        UNROLL
        for (int32_t j = 0; j < rows; j++) {
            const vf v = vf_load(x + (size_t)j * (size_t)k->dim + i);
            acc[j] = vf_fma(v, v, acc[j]);
        }
    }
    finish_sums(sums, acc, 1);
    for (int32_t j = 0; j < rows; j++)
        k->inv[first + j] = 1.0f / sqrtf(sums[j] / (float)k->dim + k->eps);
}

enum { KEY_PARTS = 2 }; /* registers of half a key */

/* One row of keys in registers: its own norm's lanes, and those of its product with a query.  The
 * halves of a row are rotated together, and its second half is added after all of the first. */
INLINE void score_key(const kk_keys *k, const float *x, const float *cs, int32_t parts, vf *norm,
                      vf *score) {
    const int32_t half = parts * KK_LANES;
    vf lo[KEY_PARTS], hi[KEY_PARTS], n = vf_set1(0), s = vf_set1(0);
    UNROLL
    for (int32_t i = 0; i < parts; i++) {
        lo[i] = vf_load(x + i * KK_LANES);
        hi[i] = vf_load(x + half + i * KK_LANES);
    }
    if (k->inv) {
        UNROLL
        for (int32_t i = 0; i < parts; i++) n = vf_fma(lo[i], lo[i], n);
        UNROLL
        for (int32_t i = 0; i < parts; i++) n = vf_fma(hi[i], hi[i], n);
    }
    UNROLL
    for (int32_t i = 0; i < parts; i++) {
        const int32_t at = i * KK_LANES;
        const vf a = vf_mul(lo[i], vf_load(k->w + at)),
                 b = vf_mul(hi[i], vf_load(k->w + half + at));
        const vf c = vf_load(cs + at), sn = vf_load(cs + half + at);
        s = vf_fma(vf_load(k->q + at), vf_fnma(b, sn, vf_mul(a, c)), s);
        hi[i] = vf_fma(a, sn, vf_mul(b, c));
    }
    UNROLL
    for (int32_t i = 0; i < parts; i++) s = vf_fma(vf_load(k->q + half + i * KK_LANES), hi[i], s);
    *norm = n;
    *score = s;
}

/* All keys, of heads that are rotated whole, against one query. */
INLINE int32_t score_keys(const kk_keys *k, int32_t parts) {
    const size_t dim = (size_t)k->dim;
    int32_t j = 0;
    for (; j + KK_CHAINS <= k->n; j += KK_CHAINS) {
        vf norm[KK_CHAINS], score[KK_CHAINS];
        float sums[KK_CHAINS];
        for (int32_t i = 0; i < KK_CHAINS; i++)
            score_key(k, k->x + (size_t)(j + i) * dim, k->cs + (size_t)(j + i) * dim, parts,
                      &norm[i], &score[i]);
        finish_sums(k->score + j, score, 1);
        if (!k->inv) continue;
        finish_sums(sums, norm, 1);
        for (int32_t i = 0; i < KK_CHAINS; i++)
            k->inv[j + i] = 1.0f / sqrtf(sums[i] / (float)k->dim + k->eps);
    }
    return j;
}

static void rotate_keys(const kk_keys *k) {
    float *x = k->x;
    int32_t j = 0;
    for (; k->inv && k->dim % KK_LANES == 0 && j + KK_CHAINS <= k->n; j += KK_CHAINS)
        inv_of_rows(k, j, KK_CHAINS);
    for (; k->inv && j < k->n; j++)
        k->inv[j] = inv_rms(x + (size_t)j * (size_t)k->dim, k->dim, k->eps);
    for (j = 0; j < k->n; j++, x += k->dim)
        rotate_key(x, k->w, k->cs + (size_t)j * 2 * (size_t)k->n_rot, k->dim / 2, k->n_rot);
}

static void keys(const kk_keys *k) {
    kk_keys rest = *k;
    int32_t done = 0;
    if (k->n_q == 1 && 2 * k->n_rot == k->dim) {
        if (k->dim == 2 * KK_LANES) done = score_keys(k, 1);
        if (k->dim == 4 * KK_LANES) done = score_keys(k, 2);
    }
    rest.n -= done;
    rest.x += (size_t)done * (size_t)k->dim;
    rest.cs += (size_t)done * 2 * (size_t)k->n_rot;
    if (k->inv) rest.inv += done;
    rotate_keys(&rest);
    if (k->n_q && rest.n) dots(k->score + done, k->q, rest.x, k->dim, k->n_q, rest.n);
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
