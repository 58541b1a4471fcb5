/* mlx_linear.cc - products with weights: plain ones, the router's, those of experts; and how many
 * rows of one product have the bits they have alone.
 *
 * MLX may choose a kernel by the number of rows, and then a row's bits depend on how many lie
 * beside it.  So a round multiplies no more rows at once than were measured to be alike, of packed
 * weights and of float32 ones each their number: on a Mac packed ones go row by row up to six rows
 * or more, where float32 ones have another kernel from two rows on.  Rows of a prompt, which plain
 * and drafted decoding read in the same chunks, go together. */
#include <algorithm>

#include "backend/mlx/mlx_host.h"
#include "backend/mlx/mlx_pages.h"

/* ---- products ------------------------------------------------------------------------------ */

/* How many rows of n are multiplied by a matrix at once. */
static int rows_at_once(const kk_dev *dev, const kk_weight *w, int n) {
    if (dev->unlimited || n > KK_MLX_ROUND_ROWS) return n;
    return std::min(n, (int)(w->bits ? dev->exact_packed_rows : dev->exact_rows));
}

/* By the codes of a packed matrix with one set of their scales. */
static mx::array packed_product(kk_dev *dev, const mx::array &x, const kk_weight *w, size_t set) {
    return mx::quantized_matmul(x, *w->w, w->planes[set].scales, w->planes[set].biases, true,
                                w->group, w->bits, "affine", dev->stream);
}

/* With all of them: the second set, where there is one, is of the second halves of groups. */
template <typename F>
static mx::array by_sets(kk_dev *dev, const mx::array &x, const kk_weight *w, F &&product) {
    if (!w->halves) return product(x, 0);
    const mx::array first = mx::multiply(x, *w->halves, dev->stream);
    return mx::add(product(first, 0), product(mx::subtract(x, first, dev->stream), 1), dev->stream);
}

mx::array kk_mlx_multiply(kk_dev *dev, const mx::array &x, const kk_weight *w) {
    const mx::Stream s = dev->stream;
    if (!w->bits) return mx::matmul(x, mx::transpose(*w->w, s), s);
    return by_sets(dev, x, w, [&](const mx::array &part, size_t set) {
        return packed_product(dev, part, w, set);
    });
}

mx::array kk_mlx_product(kk_dev *dev, const mx::array &x, const kk_weight *w) {
    const int n = x.shape(0), at_once = rows_at_once(dev, w, n);
    if (at_once == n) return kk_mlx_multiply(dev, x, w);
    std::vector<mx::array> parts;
    for (int r = 0; r < n; r += at_once) {
        const int end = std::min(n, r + at_once);
        parts.push_back(
            kk_mlx_multiply(dev, mx::slice(x, {r, 0}, {end, x.shape(1)}, dev->stream), w));
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

/* The same with the matrices of `expert` [rows, slots]. */
static mx::array chosen_packed(kk_dev *dev, const mx::array &x, const kk_weight *w, size_t set,
                               const mx::array &expert) {
    const mx::Stream s = dev->stream;
    const auto all = [&](const mx::array &m) {
        return w->n_mat == 1 ? mx::expand_dims(m, 0, s) : m;
    };
    return mx::gather_qmm(x, all(*w->w), all(w->planes[set].scales), all(w->planes[set].biases),
                          std::nullopt, expert, true, w->group, w->bits, "affine", std::nullopt,
                          false, s);
}

/* x [rows, slots or 1, 1, in] by the matrices of `expert` [rows, slots]: [rows, slots, out]. */
static mx::array chosen_product(kk_dev *dev, const mx::array &x, const kk_weight *w,
                                const mx::array &expert) {
    const mx::Stream s = dev->stream;
    if (w->bits) {
        const mx::array y = by_sets(dev, x, w, [&](const mx::array &part, size_t set) {
            return chosen_packed(dev, part, w, set, expert);
        });
        return mx::squeeze(y, 2, s);
    }
    mx::array all = *w->w;
    if (w->n_mat == 1) all = mx::expand_dims(all, 0, s);
    const mx::array wt = mx::swapaxes(all, -1, -2, s);
    return mx::squeeze(mx::gather_mm(x, wt, std::nullopt, expert, false, s), 2, s);
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

/* The most rows that all of an expert's matrices may take at once. */
static int expert_rows_at_once(const kk_dev *dev, const kk_experts_args *a) {
    int most = rows_at_once(dev, a->gate, a->n_rows);
    if (a->up) most = std::min(most, rows_at_once(dev, a->up, a->n_rows));
    return std::min(most, rows_at_once(dev, a->down, a->n_rows));
}

kk_status kk_mlx_experts(kk_dev *dev, const kk_experts_args *a, kk_err *err) {
    return kk_mlx_try(err, "experts", [&] {
        const int n = a->n_rows, used = a->n_used, at_once = expert_rows_at_once(dev, a);
        const mx::array x = kk_mlx_rows(dev, a->x, n, a->gate->n_in);
        const mx::array weight = kk_mlx_rows(dev, a->weight, n, used);
        /* Of the type that MLX takes them as: it would convert others on a stream of its own. */
        const mx::array ids = mx::view(kk_mlx_get(dev, a->expert, (size_t)(n * used), mx::int32),
                                       mx::uint32, dev->stream);
        const mx::array expert = mx::reshape(ids, {n, used}, dev->stream);
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

/* A product of rows [from, to) of inputs that it has, [to - from, n_out]. */
using row_product = std::function<mx::array(int from, int to)>;

static bool alike(const mx::array &y, const std::vector<mx::array> &alone, int n) {
    const size_t width = y.size() / (size_t)n;
    for (int r = 0; r < n; r++)
        if (memcmp(y.data<float>() + (size_t)r * width, alone[(size_t)r].data<float>(),
                   width * sizeof(float)) != 0)
            return false;
    return true;
}

/* The most rows, up to `most`, of which each has the same bits in a product of all as alone. */
static int alike_rows(kk_dev *dev, const row_product &product, int most) {
    const auto rows = [&](int from, int to) {
        return mx::contiguous(product(from, to), false, dev->stream);
    };
    std::vector<mx::array> alone;
    for (int r = 0; r < most; r++) alone.push_back(rows(r, r + 1));
    kk_mlx_compute(alone);
    for (int n = 2; n <= most; n++) {
        const mx::array y = rows(0, n);
        kk_mlx_compute({y});
        if (!alike(y, alone, n)) return n - 1;
    }
    return most;
}

/* Matrices of random values, float32 (bits 0) or packed. */
static kk_weight random_weight(kk_dev *dev, int n_mat, int n_out, int n_in, int bits, int group) {
    const mx::Stream s = dev->stream;
    const mx::array seed = mx::random::key((uint64_t)(n_mat * 7 + n_out) * 7919 + (uint64_t)n_in);
    const mx::Shape shape = n_mat > 1 ? mx::Shape{n_mat, n_out, n_in} : mx::Shape{n_out, n_in};
    const mx::array w = mx::random::normal(shape, mx::float32, 0, 1, seed, s);
    kk_weight made;
    made.n_mat = n_mat;
    made.n_out = n_out;
    made.n_in = n_in;
    if (!bits) {
        made.w = w;
        return made;
    }
    const std::vector<mx::array> parts = mx::quantize(w, group, bits, "affine", std::nullopt, s);
    made.bits = bits;
    made.group = group;
    made.w = parts[0];
    made.planes.push_back({parts[1], parts[2]});
    return made;
}

/* How many rows are alike in products with this matrix, of which experts choose some. */
static int alike_in(kk_dev *dev, const kk_weight &w, int most) {
    enum { USED = 2 };
    const mx::Stream s = dev->stream;
    const int n_in = kk_mlx_int(w.n_in), n_mat = kk_mlx_int(w.n_mat);
    const mx::array seed = mx::random::key((uint64_t)n_in);
    const mx::array x = mx::random::normal({most, n_in}, mx::float32, 0, 1, seed, s);
    const auto rows = [&](const mx::array &of, int from, int to) {
        return mx::slice(of, {from, 0}, {to, of.shape(1)}, s);
    };
    if (n_mat == 1)
        return alike_rows(
            dev, [&](int from, int to) { return kk_mlx_multiply(dev, rows(x, from, to), &w); },
            most);
    std::vector<uint32_t> ids;
    for (int i = 0; i < most * USED; i++)
        ids.push_back((uint32_t)(i * i + i / 3) % (uint32_t)n_mat);
    const mx::array expert(ids.data(), {most, USED}, mx::uint32);
    return alike_rows(
        dev,
        [&](int from, int to) {
            return chosen_product(dev, mx::expand_dims(rows(x, from, to), {1, 2}, s), &w,
                                  rows(expert, from, to));
        },
        most);
}

/* n_mat, n_out, n_in */
using shape3 = int[3];

static int alike_in_shapes(kk_dev *dev, const shape3 *shapes, size_t n, int bits, int group,
                           int most) {
    for (size_t i = 0; i < n; i++)
        most = std::min(
            most,
            alike_in(dev, random_weight(dev, shapes[i][0], shapes[i][1], shapes[i][2], bits, group),
                     most));
    return most;
}

/* Shapes at and off the edges of tiles, with few and many inputs and outputs, and experts: kernels
 * are chosen by these too.  Packed rows are whole groups, and of the ways to pack them, which have
 * the same kernels with other constants, one has all shapes. */
kk_status kk_mlx_measure_exact(kk_dev *dev, kk_exact_rows *out, kk_err *pages, kk_err *err) {
    static const shape3 floats[] = {{1, 64, 256},   {1, 256, 64},   {1, 100, 96},   {1, 128, 512},
                                    {1, 513, 640},  {1, 2048, 256}, {1, 256, 2048}, {1, 1024, 1024},
                                    {1, 2816, 704}, {8, 64, 256},   {8, 256, 704}};
    static const shape3 packed[] = {{1, 64, 256},    {1, 256, 64},   {1, 513, 640}, {1, 2048, 256},
                                    {1, 1024, 1024}, {1, 704, 2816}, {8, 64, 256},  {8, 256, 704}};
    static const shape3 others[] = {{1, 513, 640}, {8, 64, 256}};
    *out = {1, 1, 0};
    KK_TRY(kk_mlx_try(err, "the self-test of products", [&] {
        out->floats = alike_in_shapes(dev, floats, std::size(floats), 0, 0, KK_MLX_ROUND_ROWS);
        int most = alike_in_shapes(dev, packed, std::size(packed), 4, 64, KK_MLX_ROUND_ROWS);
        for (int bits : {4, 5, 6, 8})
            most = alike_in_shapes(dev, others, std::size(others), bits, 32, most);
        out->packed = alike_in_shapes(dev, others, std::size(others), 8, 64, most);
        return KK_OK;
    }));
    /* Kernels that cannot be compiled here, or are wrong, are not used; nothing else is lost. */
    (void)kk_mlx_try(pages, "the self-test of kernels over pages", [&] {
        if (!dev->kernels) dev->kernels = kk_mlx_metal_kernels(dev);
        if (!dev->kernels) return kk_fail(pages, KK_EDEVICE, "there is no Metal here");
        out->pages = kk_mlx_pages_alike(dev);
        return out->pages ? KK_OK : kk_fail(pages, KK_EDEVICE, "their results are wrong here");
    });
    return KK_OK;
}
