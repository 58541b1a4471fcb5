/* mlx_linear.cc - products with weights: plain ones, the router's, those of experts; and how many
 * rows of one product have the bits they have alone.
 *
 * Weights are float32 here, whatever the file has: MLX multiplies what has one type.  MLX may
 * choose a kernel by the number of rows, and then a row's bits depend on how many lie beside it.
 * So a round multiplies no more rows at once than were measured to be alike; rows of a prompt,
 * which plain and drafted decoding read in the same chunks, go together. */
#include <algorithm>
#include <cstdlib>

#include "backend/mlx/mlx_host.h"

/* ---- weights ------------------------------------------------------------------------------- */

static void row_as_floats(const kk_matrix *m, size_t row, size_t row_bytes, float *to) {
    const uint8_t *from = static_cast<const uint8_t *>(m->data) + row * row_bytes;
    const size_t n = (size_t)m->n_in;
    if (!kk_dtype_is_affine(m->dtype)) {
        kk_dequantize(m->dtype, from, to, n);
        return;
    }
    const size_t groups = n / (size_t)kk_dtype_get(m->dtype)->values;
    kk_dequantize_affine(m->dtype, from, kk_planes_at(m->planes, row * groups), to, n);
}

kk_status kk_mlx_weight_new(kk_dev *dev, const kk_matrix *m, kk_weight **out, kk_err *err) {
    size_t row_bytes, values, bytes;
    *out = nullptr;
    if (!kk_dtype_bytes(m->dtype, (uint64_t)m->n_in, &row_bytes) || m->n_in > INT32_MAX)
        return kk_fail(err, KK_EINVAL, "rows of %lld values cannot be stored as %s",
                       (long long)m->n_in, kk_dtype_get(m->dtype)->name);
    if (!kk_mul((size_t)(m->n_mat * m->n_out), (size_t)m->n_in, &values) ||
        !kk_mul(values, sizeof(float), &bytes) || m->n_out > INT32_MAX || m->n_mat > INT32_MAX)
        return kk_fail(err, KK_EINVAL, "%lld matrices [%lld, %lld] are too many values",
                       (long long)m->n_mat, (long long)m->n_out, (long long)m->n_in);
    if (kk_fault_point()) return kk_fail(err, KK_ENOMEM, "no memory for a weight");
    return kk_mlx_try(err, "a weight", [&] {
        auto w = std::make_unique<kk_weight>();
        w->n_mat = m->n_mat;
        w->n_out = m->n_out;
        w->n_in = m->n_in;
        mx::allocator::Data data = mx::allocator::malloc(bytes);
        mx::allocator::Buffer buffer = data.buffer();
        float *to = static_cast<float *>(buffer.raw_ptr());
        for (int64_t r = 0; r < m->n_mat * m->n_out; r++)
            row_as_floats(m, (size_t)r, row_bytes, to + r * m->n_in);
        const int n_out = kk_mlx_int(m->n_out), n_in = kk_mlx_int(m->n_in);
        mx::Shape shape = {n_out, n_in};
        if (m->n_mat > 1) shape = {kk_mlx_int(m->n_mat), n_out, n_in};
        w->w = mx::array(std::move(data), shape, mx::float32);
        dev->weights += (int64_t)bytes;
        *out = w.release();
        return KK_OK;
    });
}

void kk_mlx_weight_free(kk_dev *dev, kk_weight *w) {
    if (!w) return;
    if (w->w) dev->weights -= (int64_t)w->w->nbytes();
    delete w;
}

mx::array kk_mlx_lookup(kk_dev *dev, const kk_weight *w, const mx::array &ids) {
    return mx::take(*w->w, ids, 0, dev->stream);
}

/* ---- products ------------------------------------------------------------------------------ */

/* How many rows of n are multiplied at once. */
static int rows_at_once(const kk_dev *dev, int n) {
    if (dev->unlimited || n > KK_MLX_ROUND_ROWS) return n;
    return std::min(n, (int)dev->exact_rows);
}

mx::array kk_mlx_product(kk_dev *dev, const mx::array &x, const kk_weight *w) {
    const mx::array wt = mx::transpose(*w->w, dev->stream);
    const int n = x.shape(0), at_once = rows_at_once(dev, n);
    if (at_once == n) return mx::matmul(x, wt, dev->stream);
    std::vector<mx::array> parts;
    for (int r = 0; r < n; r += at_once) {
        const int end = std::min(n, r + at_once);
        parts.push_back(
            mx::matmul(mx::slice(x, {r, 0}, {end, x.shape(1)}, dev->stream), wt, dev->stream));
    }
    return mx::concatenate(parts, 0, dev->stream);
}

kk_status kk_mlx_linear(kk_dev *dev, const kk_linear_args *a, kk_err *err) {
    return kk_mlx_try(err, "a product", [&] {
        const mx::array x = kk_mlx_rows(dev, a->x, a->n_rows, a->w[0]->n_in);
        for (int32_t i = 0; i < a->n; i++)
            kk_mlx_put(dev, a->out[i], kk_mlx_product(dev, x, a->w[i]));
        return KK_OK;
    });
}

/* ---- router -------------------------------------------------------------------------------- */

/* The largest logits, ties to the lower id, then softmax over them alone.  Logits that were taken
 * are lost. */
static void choose_experts(std::vector<float> &logit, int32_t n_used, const float *scale,
                           int32_t *expert, float *weight) {
    float sum = 0;
    for (int32_t s = 0; s < n_used; s++) {
        size_t best = 0;
        for (size_t e = 1; e < logit.size(); e++)
            if (logit[e] > logit[best]) best = e;
        expert[s] = (int32_t)best;
        weight[s] = logit[best];
        logit[best] = -INFINITY;
    }
    const float top = weight[0];
    for (int32_t s = 0; s < n_used; s++) sum += weight[s] = expf(weight[s] - top);
    for (int32_t s = 0; s < n_used; s++) weight[s] = weight[s] / sum * scale[expert[s]];
}

kk_status kk_mlx_route(kk_dev *dev, const kk_route_args *a, kk_err *err) {
    return kk_mlx_try(err, "a router", [&] {
        const int64_t hidden = a->proj->n_in, n_expert = a->proj->n_out;
        const int32_t n = a->n_rows, used = a->n_used;
        const mx::array x = kk_mlx_rows(dev, a->x, n, hidden);
        const mx::array normed = kk_mlx_norm_of(dev, x, a->scale, hidden, a->eps);
        const mx::array root(1.0f / sqrtf((float)hidden));
        const mx::array logits =
            kk_mlx_product(dev, mx::multiply(normed, root, dev->stream), a->proj);
        const mx::array scale = kk_mlx_get(dev, a->per_expert_scale, (size_t)n_expert);
        const auto made =
            kk_mlx_host(dev, {logits, scale}, {{{n, used}, mx::int32}, {{n, used}, mx::float32}},
                        [n, used, n_expert](const std::vector<const void *> &in,
                                            const std::vector<void *> &out) {
                            const float *row = static_cast<const float *>(in[0]);
                            for (int32_t r = 0; r < n; r++, row += n_expert) {
                                std::vector<float> logit(row, row + n_expert);
                                choose_experts(logit, used, static_cast<const float *>(in[1]),
                                               static_cast<int32_t *>(out[0]) + r * used,
                                               static_cast<float *>(out[1]) + r * used);
                            }
                        });
        kk_mlx_put(dev, a->expert, made[0]);
        kk_mlx_put(dev, a->weight, made[1]);
        return KK_OK;
    });
}

/* ---- experts ------------------------------------------------------------------------------- */

/* x [rows, slots or 1, 1, in] by the matrices of `expert` [rows, slots]: [rows, slots, out]. */
static mx::array chosen_product(kk_dev *dev, const mx::array &x, const kk_weight *w,
                                const mx::array &expert) {
    mx::array all = *w->w;
    if (w->n_mat == 1) all = mx::expand_dims(all, 0, dev->stream);
    const mx::array wt = mx::swapaxes(all, -1, -2, dev->stream);
    return mx::squeeze(mx::gather_mm(x, wt, std::nullopt, expert, false, dev->stream), 2,
                       dev->stream);
}

static mx::array experts_of(kk_dev *dev, const kk_experts_args *a, const mx::array &x,
                            const mx::array &expert, const mx::array &weight) {
    const mx::Stream s = dev->stream;
    const mx::array in = mx::expand_dims(x, {1, 2}, s);
    const mx::array both = chosen_product(dev, in, a->gate, expert);
    const mx::array gate = a->up ? both : kk_mlx_columns(dev, both, 0, a->ffn);
    const mx::array up = a->up ? chosen_product(dev, in, a->up, expert)
                               : kk_mlx_columns(dev, both, a->ffn, 2 * (int64_t)a->ffn);
    const mx::array mid = mx::multiply(kk_mlx_gelu(dev, gate), up, s);
    const mx::array each = chosen_product(dev, mx::expand_dims(mid, 2, s), a->down, expert);
    /* Slots are added one after the other: a sum over an axis might take another order. */
    mx::array sum = mx::zeros({x.shape(0), kk_mlx_int(a->down->n_out)}, mx::float32, s);
    for (int32_t k = 0; k < a->n_used; k++) {
        const mx::array w = kk_mlx_columns(dev, weight, k, k + 1);
        sum = mx::add(sum, mx::multiply(mx::take(each, k, 1, s), w, s), s);
    }
    return sum;
}

/* MLX multiplies the rows of each expert one by one here, so their number is of no account; on a
 * GPU that is not known, and rows of a round go as they do in other products. */
kk_status kk_mlx_experts(kk_dev *dev, const kk_experts_args *a, kk_err *err) {
    return kk_mlx_try(err, "experts", [&] {
        const int n = a->n_rows, used = a->n_used, at_once = rows_at_once(dev, n);
        const mx::array x = kk_mlx_rows(dev, a->x, n, a->gate->n_in);
        const mx::array weight = kk_mlx_rows(dev, a->weight, n, used);
        const mx::array expert = mx::reshape(
            kk_mlx_get(dev, a->expert, (size_t)(n * used), mx::int32), {n, used}, dev->stream);
        std::vector<mx::array> parts;
        for (int r = 0; r < n; r += at_once) {
            const int end = std::min(n, r + at_once);
            const auto rows = [&](const mx::array &m) {
                return mx::slice(m, {r, 0}, {end, m.shape(1)}, dev->stream);
            };
            parts.push_back(experts_of(dev, a, rows(x), rows(expert), rows(weight)));
        }
        kk_mlx_put(dev, a->out,
                   parts.size() > 1 ? mx::concatenate(parts, 0, dev->stream) : parts[0]);
        return KK_OK;
    });
}

/* ---- the self-test ------------------------------------------------------------------------- */

/* Whether the first n of these rows have the same bits in a product of n rows as each alone. */
static bool rows_are_alike(kk_dev *dev, const mx::array &x, const mx::array &wt,
                           const std::vector<mx::array> &alone, int n) {
    const mx::Stream s = dev->stream;
    const mx::array y =
        mx::contiguous(mx::matmul(mx::slice(x, {0, 0}, {n, x.shape(1)}, s), wt, s), false, s);
    mx::eval(y);
    for (int r = 0; r < n; r++)
        if (memcmp(y.data<float>() + (size_t)r * (size_t)y.shape(1), alone[(size_t)r].data<float>(),
                   (size_t)y.shape(1) * sizeof(float)) != 0)
            return false;
    return true;
}

/* The most rows that are alike for a matrix [n_out, n_in] of random values, up to `most`. */
static int alike_rows(kk_dev *dev, int n_out, int n_in, int most) {
    const mx::Stream s = dev->stream;
    const mx::array seed = mx::random::key((uint64_t)n_out * 7919 + (uint64_t)n_in);
    const mx::array w = mx::random::normal({n_out, n_in}, mx::float32, 0, 1, seed, s);
    const mx::array x = mx::random::normal({most, n_in}, mx::float32, 0, 1, seed, s);
    const mx::array wt = mx::transpose(w, s);
    std::vector<mx::array> alone;
    for (int r = 0; r < most; r++) {
        const mx::array row = mx::slice(x, {r, 0}, {r + 1, n_in}, s);
        alone.push_back(mx::contiguous(mx::matmul(row, wt, s), false, s));
    }
    mx::eval(alone);
    int n = 1;
    while (n < most && rows_are_alike(dev, x, wt, alone, n + 1)) n++;
    return n;
}

/* Shapes at and off the edges of tiles, with few and many inputs and outputs: kernels are chosen by
 * these too. */
kk_status kk_mlx_measure_exact(kk_dev *dev, int32_t *rows, kk_err *err) {
    static const int shapes[][2] = {{64, 256},   {256, 64},   {100, 96},    {128, 512}, {513, 640},
                                    {2048, 256}, {256, 2048}, {1024, 1024}, {2816, 704}};
    *rows = 1;
    return kk_mlx_try(err, "the self-test of products", [&] {
        int most = KK_MLX_ROUND_ROWS;
        for (const auto &s : shapes) most = alike_rows(dev, s[0], s[1], most);
        *rows = most;
        return KK_OK;
    });
}
