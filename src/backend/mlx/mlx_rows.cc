/* mlx_rows.cc - operations that touch each row on its own: embedding, norms, activations. */
#include <algorithm>

#include "backend/mlx/mlx_device.h"

extern "C" {
#include "backend/angles.h"
}

enum { WIDEST = 65536, WIDEST_PIECE = 1024 }; /* values of a row, and of a per-layer input */

/* Begins a forward: what an earlier one asked for, if nobody waited for it, starts now, so that the
 * graph of a long prompt stays one forward long. */
static void begin(kk_dev *dev) {
    if (dev->asked) kk_mlx_start(dev);
}

static mx::array ids_of(kk_dev *dev, const int32_t *token, const kk_buf *chosen, int32_t n) {
    if (chosen) return kk_mlx_get(dev, chosen, (size_t)n, mx::int32);
    return mx::array(token, {n}, mx::int32);
}

static mx::array scaled(kk_dev *dev, const mx::array &x, float by) {
    return by == 1.0f ? x : mx::multiply(x, mx::array(by), dev->stream); /* exact either way */
}

kk_status kk_mlx_embed(kk_dev *dev, const kk_embed_args *a, kk_err *err) {
    return kk_mlx_try(err, "an embedding", [&] {
        begin(dev);
        const mx::array rows =
            kk_mlx_lookup(dev, a->table, ids_of(dev, a->token, a->chosen, a->n_rows));
        kk_mlx_put(dev, a->out, scaled(dev, rows, a->scale));
        return KK_OK;
    });
}

mx::array kk_mlx_norm_of(kk_dev *dev, const mx::array &x, const kk_buf *w, int64_t dim, float eps) {
    std::optional<mx::array> weight;
    if (w) weight = kk_mlx_get(dev, w, (size_t)dim);
    return mx::fast::rms_norm(x, weight, eps, dev->stream);
}

kk_status kk_mlx_norm(kk_dev *dev, const kk_norm_args *a, kk_err *err) {
    return kk_mlx_try(err, "a norm", [&] {
        const mx::array x = kk_mlx_rows(dev, a->x, a->n_rows, a->dim);
        kk_mlx_put(dev, a->out, kk_mlx_norm_of(dev, x, a->w, a->dim, a->eps));
        return KK_OK;
    });
}

kk_status kk_mlx_residual(kk_dev *dev, const kk_residual_args *a, kk_err *err) {
    if (a->dim > WIDEST) return kk_fail(err, KK_EINVAL, "rows of %d values are too wide", a->dim);
    return kk_mlx_try(err, "a sum", [&] {
        const mx::array x = kk_mlx_rows(dev, a->x, a->n_rows, a->dim);
        mx::array add = kk_mlx_rows(dev, a->a, a->n_rows, a->dim);
        if (a->w) add = kk_mlx_norm_of(dev, add, a->w, a->dim, a->eps);
        kk_mlx_put(dev, a->x, scaled(dev, mx::add(x, add, dev->stream), a->scale));
        return KK_OK;
    });
}

/* x / 2 * (1 + tanh(u)), u = sqrt(2 / pi) * (x + 0.044715 x^3), as x * sigmoid(2 u): a sum with
 * tanh near -1 would lose what is left of it. */
mx::array kk_mlx_gelu(kk_dev *dev, const mx::array &x) {
    const mx::Stream s = dev->stream;
    const mx::array cube = mx::multiply(mx::multiply(x, x, s), x, s);
    const mx::array inner = mx::add(x, scaled(dev, cube, 0.044715f), s);
    return mx::multiply(x, mx::sigmoid(scaled(dev, inner, 2 * 0.7978845608028654f), s), s);
}

static mx::array activate(kk_dev *dev, const mx::array &x, kk_activation act) {
    if (act == KK_GELU_TANH) return kk_mlx_gelu(dev, x);
    return mx::multiply(x, mx::sigmoid(x, dev->stream), dev->stream);
}

/* Rows of dim values that lie `stride` apart, the first at `at`; the last row ends the buffer. */
static mx::array strided(kk_dev *dev, const kk_buf *b, int32_t rows, int32_t dim, int32_t stride,
                         int32_t at) {
    if (stride == dim && at == 0) return kk_mlx_rows(dev, b, rows, dim);
    const int64_t end = (int64_t)(rows - 1) * stride + at + dim;
    const mx::array flat = kk_mlx_get(dev, b, (size_t)end);
    return mx::as_strided(flat, {rows, dim}, {stride, 1}, (size_t)at, dev->stream);
}

kk_status kk_mlx_glu(kk_dev *dev, const kk_glu_args *a, kk_err *err) {
    return kk_mlx_try(err, "an activation", [&] {
        const mx::array gate = kk_mlx_rows(dev, a->gate, a->n_rows, a->dim);
        const mx::array up = strided(dev, a->up, a->n_rows, a->dim, a->up_stride, a->up_offset);
        kk_mlx_put(dev, a->out, mx::multiply(activate(dev, gate, a->act), up, dev->stream));
        return KK_OK;
    });
}

kk_status kk_mlx_ple(kk_dev *dev, const kk_ple_args *a, kk_err *err) {
    if (a->dim > WIDEST_PIECE)
        return kk_fail(err, KK_EINVAL, "per-layer inputs of %d values are too wide", a->dim);
    return kk_mlx_try(err, "per-layer inputs", [&] {
        const mx::Shape pieces = {a->n_rows, a->n_layer, a->dim};
        const int64_t width = (int64_t)a->n_layer * a->dim;
        const mx::array proj =
            mx::reshape(kk_mlx_rows(dev, a->proj, a->n_rows, width), pieces, dev->stream);
        const mx::array normed =
            kk_mlx_norm_of(dev, scaled(dev, proj, a->proj_scale), a->w, a->dim, a->eps);
        const mx::array rows =
            mx::reshape(kk_mlx_lookup(dev, a->table, ids_of(dev, a->token, a->chosen, a->n_rows)),
                        pieces, dev->stream);
        const mx::array sum = mx::add(normed, scaled(dev, rows, a->scale), dev->stream);
        kk_mlx_put(dev, a->out, scaled(dev, sum, 0.70710678118654752f));
        return KK_OK;
    });
}

/* Rows into places that lie `stride` apart: what is between them stays. */
static void put_strided(kk_dev *dev, kk_buf *b, const mx::array &rows, size_t at, size_t stride) {
    const int n = rows.shape(0), dim = rows.shape(1);
    const size_t whole = (size_t)(n - 1) * stride;
    const mx::array now = kk_mlx_get(dev, b, at + whole + (size_t)dim);
    const int from = kk_mlx_int((int64_t)at), last = kk_mlx_int((int64_t)(at + whole));
    std::vector<mx::array> parts;
    if (at) parts.push_back(mx::slice(now, {0}, {from}, dev->stream));
    if (whole) {
        const mx::array all = mx::reshape(mx::slice(now, {from}, {last}, dev->stream),
                                          {n - 1, kk_mlx_int((int64_t)stride)}, dev->stream);
        const mx::array put =
            mx::slice_update(all, mx::slice(rows, {0, 0}, {n - 1, dim}, dev->stream),
                             mx::Shape{0, 0}, mx::Shape{n - 1, dim}, dev->stream);
        parts.push_back(mx::reshape(put, {-1}, dev->stream));
    }
    parts.push_back(
        mx::reshape(mx::slice(rows, {n - 1, 0}, {n, dim}, dev->stream), {-1}, dev->stream));
    kk_mlx_put(dev, b, mx::concatenate(parts, 0, dev->stream));
}

kk_status kk_mlx_gather(kk_dev *dev, const kk_gather_args *a, kk_err *err) {
    return kk_mlx_try(err, "a gather", [&] {
        std::vector<int32_t> row((size_t)a->n);
        for (int32_t i = 0; i < a->n; i++) row[(size_t)i] = a->row ? a->row[i] : a->first + i;
        const int32_t last = *std::max_element(row.begin(), row.end());
        const mx::array x = kk_mlx_rows(dev, a->x, (int64_t)last + 1, a->dim);
        const mx::array rows =
            a->row ? mx::take(x, mx::array(row.data(), {a->n}, mx::int32), 0, dev->stream)
                   : mx::slice(x, {a->first, 0}, {a->first + a->n, a->dim}, dev->stream);
        if (!a->out_stride || a->out_stride == (size_t)a->dim)
            kk_mlx_put_at(dev, a->out, a->out_at, rows);
        else
            put_strided(dev, a->out, rows, a->out_at, a->out_stride);
        return KK_OK;
    });
}

kk_status kk_mlx_softcap(kk_dev *dev, const kk_softcap_args *a, kk_err *err) {
    return kk_mlx_try(err, "a soft cap", [&] {
        const mx::Stream s = dev->stream;
        const mx::array x = kk_mlx_rows(dev, a->x, a->n_rows, a->dim), cap(a->cap);
        const mx::array y = mx::multiply(mx::tanh(mx::divide(x, cap, s), s), cap, s);
        /* x - x is 0 of a finite value, and NaN of others. */
        kk_mlx_put(dev, a->x, mx::add(y, mx::subtract(x, x, s), s));
        return KK_OK;
    });
}

/* Angles are known here and now: they go into the buffer's own memory. */
kk_status kk_mlx_rope(kk_dev *dev, const kk_rope_args *a, kk_err *err) {
    const int32_t n = a->rope.n_rot;
    const size_t row = 2 * (size_t)n;
    if (a->shift) return kk_fail(err, KK_EDEVICE, "MLX knows the positions of its rows");
    if ((size_t)(a->first + a->n) * row * 4 > a->table->bytes)
        return kk_fail(err, KK_EINVAL, "%lld rows of angles in a buffer of %zu bytes",
                       (long long)(a->first + a->n), a->table->bytes);
    return kk_mlx_try(err, "angles", [&]() -> kk_status {
        std::vector<float> freq((size_t)n + 1), made((size_t)a->n * row);
        kk_frequencies(freq.data(), a->rope.theta, a->rope.factor, n, a->rope.head_dim);
        for (int64_t i = 0; i < a->n; i++)
            kk_angles_row(made.data() + (size_t)i * row, freq.data(), n,
                          a->pos ? a->pos[i] : a->pos0 + i);
        if (a->first == 0) {
            if (!made.empty())
                kk_mlx_put(dev, a->table,
                           mx::array(made.data(), {kk_mlx_int((int64_t)made.size())}));
            return KK_OK;
        }
        KK_TRY(kk_mlx_settle(dev, a->table, err));
        memcpy(a->table->host.get() + (size_t)a->first * row * 4, made.data(), made.size() * 4);
        return KK_OK;
    });
}

kk_status kk_mlx_ids(kk_dev *dev, const kk_ids_args *a, kk_err *err) {
    return kk_mlx_try(err, "ids", [&] {
        kk_mlx_put(dev, a->out, mx::array(a->id, {a->n}, mx::int32));
        return KK_OK;
    });
}

kk_status kk_mlx_replay(kk_dev *dev, const kk_replay_args *a, kk_err *err) {
    return kk_mlx_try(err, "a replay", [&]() -> kk_status {
        std::vector<int32_t> record((size_t)a->n_record), ids((size_t)(a->ids_at + a->n));
        int32_t shift = 0;
        KK_TRY(kk_mlx_flush(dev, err));
        kk_mlx_copy_out(a->record, 0, record.data(), record.size() * 4);
        kk_mlx_copy_out(a->ids, 0, ids.data(), ids.size() * 4);
        if (a->shift) kk_mlx_copy_out(a->shift, 0, &shift, 4);
        for (int32_t i = 0; i < a->n && i <= a->right; i++) {
            const int32_t at = a->at + shift + i;
            if (at < 0 || at >= a->n_record) break;
            const int32_t id = record[(size_t)at];
            ids[(size_t)(a->ids_at + i)] = i < a->right ? id : (id + 1) % a->vocab;
        }
        kk_mlx_put(dev, a->ids,
                   mx::array(ids.data(), {kk_mlx_int((int64_t)ids.size())}, mx::int32));
        return KK_OK;
    });
}
