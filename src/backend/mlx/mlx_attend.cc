/* mlx_attend.cc - K/V rows and attention over them.
 *
 * Rows are packed into pages and unpacked from them in C, in every format that kvformat.h has; what
 * lies between is MLX's: norms and rotations before, softmax(q K^T) V after.  The keys that rows of
 * a tile see are gathered once, head by head, in the order of their positions.  In a round every
 * row has attention of its own over the ranges that it sees, so shapes, and with them kernels,
 * depend on its position alone; rows of a prompt share products under a mask.
 *
 * Evicted rows are rebuilt a page at a time, so that these products too have one shape. */
#include <algorithm>

#include "backend/mlx/mlx_host.h"
#include "backend/mlx/mlx_pages.h"
#include "backend/mlx/mlx_seen.h"

extern "C" {
#include "backend/angles.h"
}

enum { HEAD_MOST = 1024, TILE_ROWS = 64 }; /* values of a head; rows of a prompt's tile */

static kk_status check_heads(const kk_kv_slot *s, int32_t n_head, kk_err *err) {
    if (s->head_dim > HEAD_MOST)
        return kk_fail(err, KK_EINVAL, "heads of %d values: at most %d", s->head_dim, HEAD_MOST);
    if (s->n_kv_head < 1 || n_head % s->n_kv_head)
        return kk_fail(err, KK_EINVAL, "%d heads cannot share %d K/V heads", n_head, s->n_kv_head);
    return KK_OK;
}

static kk_status check_groups(const kk_rows *rows, kk_err *err) {
    for (int32_t i = 0; i < rows->n_groups; i++)
        if (rows->group[i].shift)
            return kk_fail(err, KK_EDEVICE, "MLX knows the positions of its rows");
    return KK_OK;
}

/* x [n, heads, d] rotated by rows of angles cs [n, 2, n_rot]. */
static mx::array rotated(kk_dev *dev, const mx::array &x, const mx::array &cs, int32_t n_rot) {
    if (n_rot == 0) return x;
    const mx::Stream s = dev->stream;
    const int n = x.shape(0), d = x.shape(2), half = d / 2;
    const mx::array c = mx::slice(cs, {0, 0, 0}, {n, 1, n_rot}, s);
    const mx::array sn = mx::slice(cs, {0, 1, 0}, {n, 2, n_rot}, s);
    const mx::array a = kk_mlx_columns(dev, x, 0, n_rot);
    const mx::array b = kk_mlx_columns(dev, x, half, half + n_rot);
    const mx::array left = mx::subtract(mx::multiply(a, c, s), mx::multiply(b, sn, s), s);
    const mx::array right = mx::add(mx::multiply(b, c, s), mx::multiply(a, sn, s), s);
    if (n_rot == half) return mx::concatenate({left, right}, 2, s);
    return mx::concatenate(
        {left, kk_mlx_columns(dev, x, n_rot, half), right, kk_mlx_columns(dev, x, half + n_rot, d)},
        2, s);
}

static mx::array heads_of(kk_dev *dev, const kk_buf *b, int32_t n, int32_t heads, int32_t d) {
    return kk_mlx_shaped(dev, b, {n, heads, d});
}

/* ---- rows into pages ----------------------------------------------------------------------- */

/* Where one row goes: its page, and the row in it. */
struct target {
    uint8_t *page;
    int32_t row;
};

static std::vector<target> targets_of(const kk_rows *rows, bool latents) {
    std::vector<target> to((size_t)rows->n_rows);
    for (int32_t i = 0; i < rows->n_groups; i++) {
        const kk_group *g = &rows->group[i];
        for (int32_t r = 0; r < g->n_rows; r++) {
            const int64_t pos = g->pos + r;
            uint8_t *const *pages = latents ? g->latents : g->pages;
            to[(size_t)(g->row + r)] = {pages[pos / KK_PAGE_ROWS], (int32_t)(pos % KK_PAGE_ROWS)};
        }
    }
    return to;
}

static void pack_row(const kk_kv_slot &s, const target &to, size_t off, const float *x) {
    const kk_kv_place at = kk_kv_row_place(s.format, s.head_dim, KK_PAGE_ROWS, to.row);
    uint8_t *head = to.page + off;
    for (int32_t h = 0; h < s.n_kv_head; h++, x += s.head_dim) {
        kk_kv_format_get(s.format)->pack(x, s.head_dim, head, at);
        head += kk_kv_head_bytes(s.format, s.head_dim);
    }
}

/* Packs rows [n, heads, d], each array at an offset of its own. */
static void pack_rows(kk_dev *dev, const kk_kv_slot &slot, std::vector<target> to,
                      const std::vector<mx::array> &x, std::vector<size_t> off) {
    const size_t width = (size_t)slot.n_kv_head * (size_t)slot.head_dim;
    kk_mlx_on_pages(dev, x, {},
                    [slot, to = std::move(to), off = std::move(off),
                     width](const std::vector<const void *> &in, const std::vector<void *> &) {
                        for (size_t k = 0; k < off.size(); k++)
                            for (size_t r = 0; r < to.size(); r++)
                                pack_row(slot, to[r], off[k],
                                         static_cast<const float *>(in[k]) + r * width);
                    });
    dev->asked++;
}

static void store_kv(kk_dev *dev, const kk_store_args *a, const mx::array &angles) {
    const kk_kv_slot &s = a->slot;
    const int32_t n = a->rows->n_rows;
    const mx::array k = heads_of(dev, a->k, n, s.n_kv_head, s.head_dim);
    mx::array v = a->v ? heads_of(dev, a->v, n, s.n_kv_head, s.head_dim) : k;
    if (!a->v_raw) v = kk_mlx_norm_of(dev, v, nullptr, s.head_dim, a->eps);
    if (s.k_eq_v) {
        pack_rows(dev, s, targets_of(a->rows, false), {v}, {s.v_off});
        return;
    }
    const mx::array key =
        rotated(dev, kk_mlx_norm_of(dev, k, a->k_norm, s.head_dim, a->eps), angles, a->n_rot);
    pack_rows(dev, s, targets_of(a->rows, false), {key, v}, {s.k_off, s.v_off});
}

kk_status kk_mlx_store(kk_dev *dev, const kk_store_args *a, kk_err *err) {
    KK_TRY(check_heads(&a->slot, a->n_head, err));
    KK_TRY(check_groups(a->rows, err));
    return kk_mlx_try(err, "storing rows", [&] {
        const int32_t n = a->rows->n_rows, d = a->slot.head_dim;
        const size_t words = (size_t)n * 2 * (size_t)a->n_rot;
        const mx::array angles = a->n_rot ? mx::reshape(kk_mlx_get(dev, a->rope_rows, words),
                                                        {n, 2, a->n_rot}, dev->stream)
                                          : mx::array(0.0f);
        if (a->q) {
            const mx::array q = heads_of(dev, a->q, n, a->n_head, d);
            kk_mlx_put(
                dev, a->q,
                rotated(dev, kk_mlx_norm_of(dev, q, a->q_norm, d, a->eps), angles, a->n_rot));
        }
        if (a->k) store_kv(dev, a, angles);
        return KK_OK;
    });
}

kk_status kk_mlx_keep(kk_dev *dev, const kk_keep_args *a, kk_err *err) {
    KK_TRY(check_groups(a->rows, err));
    return kk_mlx_try(err, "keeping latents", [&] {
        const mx::array x =
            heads_of(dev, a->x, a->rows->n_rows, a->slot.n_kv_head, a->slot.head_dim);
        pack_rows(dev, a->slot, targets_of(a->rows, true), {x},
                  {a->keys ? a->slot.k_off : a->slot.v_off});
        return KK_OK;
    });
}

/* ---- rows out of pages --------------------------------------------------------------------- */

/* The block of rows that holds a position, at the slot's first byte, and the row in it. */
struct source {
    const uint8_t *block;
    int32_t row, block_rows;
};

static void unpack_row(float *y, const kk_kv_slot &s, const source &from, size_t off,
                       int32_t head) {
    const size_t bytes = (size_t)from.block_rows * kk_kv_row_bytes(s.format, s.head_dim);
    /* A sink has fewer rows than a page: what lies before the head is shorter in proportion. */
    const size_t at = off / KK_PAGE_ROWS * (size_t)from.block_rows + (size_t)head * bytes;
    kk_kv_format_get(s.format)->unpack(
        y, s.head_dim, from.block + at,
        kk_kv_row_place(s.format, s.head_dim, from.block_rows, from.row));
}

static source source_of(const kk_attend_args *a, const kk_group *g, int64_t pos) {
    /* Rows of this forward are copied to the sink only when they are committed. */
    if (g->sink && pos < a->sink && pos < g->pos) return {g->sink, (int32_t)pos, a->sink};
    return {g->pages[pos / KK_PAGE_ROWS], (int32_t)(pos % KK_PAGE_ROWS), KK_PAGE_ROWS};
}

/* In place, as `rotated` does. */
static void rotate_row(float *x, const float *cs, int32_t d, int32_t n_rot) {
    for (int32_t i = 0; i < n_rot; i++) {
        const float a = x[i], b = x[i + d / 2], c = cs[i], s = cs[n_rot + i];
        x[i] = a * c - b * s;
        x[i + d / 2] = b * c + a * s;
    }
}

/* Angles of rows whose K is computed from V: of each in turn, or a table by position. */
struct row_angles {
    std::vector<float> own;
    std::shared_ptr<uint8_t> table; /* held on to, should the buffer grow */
    const float *at(size_t i, int64_t pos, int32_t n_rot) const {
        const size_t row = 2 * (size_t)n_rot;
        if (!own.empty()) return own.data() + i * row;
        return reinterpret_cast<const float *>(table.get()) + (size_t)pos * row;
    }
};

static void angles_of(float *cs, const kk_rope &rope, const std::vector<int64_t> &pos) {
    std::vector<float> freq((size_t)rope.n_rot + 1);
    kk_frequencies(freq.data(), rope.theta, rope.factor, rope.n_rot, rope.head_dim);
    for (size_t i = 0; i < pos.size(); i++)
        kk_angles_row(cs + i * 2 * (size_t)rope.n_rot, freq.data(), rope.n_rot, pos[i]);
}

/* Where rows are evicted there is no table: it would grow with the context. */
static row_angles angles_for(kk_dev *dev, const kk_attend_args *a,
                             const std::vector<int64_t> &pos) {
    row_angles angles;
    if (!a->slot.k_eq_v) return angles;
    if (a->evicted) {
        angles.own.resize(pos.size() * 2 * (size_t)a->n_rot + 1);
        angles_of(angles.own.data(), a->evicted->rope, pos);
        return angles;
    }
    kk_err err;
    if (kk_mlx_settle(dev, const_cast<kk_buf *>(a->rope_pos), &err) != KK_OK)
        throw std::runtime_error(err.msg);
    angles.table = a->rope_pos->host;
    return angles;
}

/* K and V of stored rows, [n_kv_head, n, d] each. */
static std::vector<mx::array> stored_rows(kk_dev *dev, const kk_attend_args *a, const kk_group *g,
                                          const std::vector<int64_t> &pos) {
    const kk_kv_slot slot = a->slot;
    const int32_t n_rot = a->n_rot, n = (int32_t)pos.size(), d = slot.head_dim;
    std::vector<source> from;
    std::vector<mx::array> in;
    for (int64_t p : pos) from.push_back(source_of(a, g, p));
    if (slot.k_eq_v) in.push_back(kk_mlx_get(dev, a->k_norm, (size_t)d));
    const kk_mlx_out out = {{slot.n_kv_head, n, d}, mx::float32};
    return kk_mlx_on_pages(
        dev, in, {out, out},
        [slot, n_rot, n, d, pos, from = std::move(from), angles = angles_for(dev, a, pos)](
            const std::vector<const void *> &at, const std::vector<void *> &to) {
            float *k = static_cast<float *>(to[0]), *v = static_cast<float *>(to[1]);
            for (int32_t h = 0; h < slot.n_kv_head; h++)
                for (size_t i = 0; i < (size_t)n; i++, k += d, v += d) {
                    unpack_row(v, slot, from[i], slot.v_off, h);
                    if (!slot.k_eq_v) {
                        unpack_row(k, slot, from[i], slot.k_off, h);
                        continue;
                    }
                    const float *norm = static_cast<const float *>(at[0]);
                    for (int32_t j = 0; j < d; j++) k[j] = v[j] * norm[j];
                    rotate_row(k, angles.at(i, pos[i], n_rot), d, n_rot);
                }
        });
}

/* ---- rows rebuilt from latents ------------------------------------------------------------- */

/* Latents of positions [from, to), which begin and end with a page; beyond `known` they are 0. */
static mx::array latents_at(kk_dev *dev, const kk_kv_slot &slot, uint8_t *const *pages,
                            int64_t from, int64_t to, int64_t known) {
    std::vector<const uint8_t *> page;
    for (int64_t p = from; p < to; p += KK_PAGE_ROWS) page.push_back(pages[p / KK_PAGE_ROWS]);
    const int32_t rank = slot.head_dim;
    const int64_t n = known - from;
    return kk_mlx_on_pages(dev, {}, {{{kk_mlx_int(to - from), rank}, mx::float32}},
                           [slot, page = std::move(page), n, rank](
                               const std::vector<const void *> &, const std::vector<void *> &out) {
                               float *z = static_cast<float *>(out[0]);
                               memset(z, 0, page.size() * KK_PAGE_ROWS * (size_t)rank * sizeof *z);
                               for (int64_t i = 0; i < n; i++, z += rank)
                                   unpack_row(z, slot,
                                              {page[(size_t)(i / KK_PAGE_ROWS)],
                                               (int32_t)(i % KK_PAGE_ROWS), KK_PAGE_ROWS},
                                              slot.v_off, 0);
                           })[0];
}

/* A decoder as [rank, out], unpacked, for MLX's CPU device: with the other layout its BLAS adds
 * product by product, and packed products are slower still. */
static const mx::array &decoder_of(kk_dev *dev, const kk_weight *w) {
    const mx::Stream s = dev->stream;
    if (!w->decoder) {
        const mx::array all =
            kk_mlx_lookup(dev, w, mx::arange(0, kk_mlx_int(w->n_out), 1, mx::int32, s));
        w->decoder = mx::contiguous(mx::transpose(all, s), false, s);
    }
    return *w->decoder;
}

/* z w^T by pages: [n, heads, d]. */
static mx::array decoded(kk_dev *dev, const mx::array &z, const kk_weight *w, int32_t heads) {
    const mx::Stream s = dev->stream;
    const bool cpu = s.device == mx::Device::cpu;
    std::vector<mx::array> parts;
    for (int r = 0; r < z.shape(0); r += KK_PAGE_ROWS) {
        const mx::array page = mx::slice(z, {r, 0}, {r + KK_PAGE_ROWS, z.shape(1)}, s);
        parts.push_back(cpu ? mx::matmul(page, decoder_of(dev, w), s)
                            : kk_mlx_multiply(dev, page, w));
    }
    const mx::array all = parts.size() > 1 ? mx::concatenate(parts, 0, s) : parts[0];
    return mx::reshape(all, {z.shape(0), heads, kk_mlx_int(w->n_out) / heads}, s);
}

static mx::array angles_at(const kk_rope &rope, int64_t from, int64_t to) {
    std::vector<int64_t> pos;
    for (int64_t p = from; p < to; p++) pos.push_back(p);
    std::vector<float> cs(pos.size() * 2 * (size_t)rope.n_rot + 1);
    angles_of(cs.data(), rope, pos);
    return mx::array(cs.data(), {kk_mlx_int(to - from), 2, rope.n_rot});
}

/* What was kept of 1 / rms(D_v z) of each head, [n, heads, 1]; 0 beyond `known`. */
static mx::array scales_at(kk_dev *dev, const kk_attend_args *a, const kk_group *g, int64_t from,
                           int64_t to, int64_t known) {
    const kk_kv_slot slot = a->evicted->scales;
    const int32_t heads = a->slot.n_kv_head, first = a->evicted->scale_at;
    std::vector<const uint8_t *> page;
    for (int64_t p = from; p < to; p += KK_PAGE_ROWS) page.push_back(g->latents[p / KK_PAGE_ROWS]);
    const int64_t n = known - from, all = to - from;
    return kk_mlx_on_pages(
        dev, {}, {{{kk_mlx_int(all), heads, 1}, mx::float32}},
        [slot, page = std::move(page), n, all, heads, first](const std::vector<const void *> &,
                                                             const std::vector<void *> &out) {
            float *y = static_cast<float *>(out[0]);
            memset(y, 0, (size_t)(all * heads) * sizeof *y);
            for (int64_t i = 0; i < n; i++)
                for (int32_t h = 0; h < heads; h++) {
                    uint16_t bits;
                    memcpy(&bits,
                           page[(size_t)(i / KK_PAGE_ROWS)] + slot.v_off +
                               2 * (size_t)(i % KK_PAGE_ROWS * slot.head_dim + first + h),
                           sizeof bits);
                    *y++ = kk_bf16_f32(bits);
                }
        })[0];
}

/* Under diagnosis: the rows as they were projected, in part. */
static mx::array mixed(kk_dev *dev, const kk_attend_args *a, const kk_group *g, bool keys,
                       const mx::array &raw, int64_t from, int64_t known) {
    const kk_diagnosis *by = a->evicted->diagnosis;
    if (!by) return raw;
    const kk_kv_slot slot = by->truth[a->evicted->layer];
    std::vector<const uint8_t *> page;
    for (int64_t p = from; p < known; p += KK_PAGE_ROWS)
        page.push_back(g->latents[p / KK_PAGE_ROWS]);
    const int64_t n = known - from;
    const size_t off = keys ? slot.k_off : slot.v_off;
    const mx::array truth =
        kk_mlx_on_pages(dev, {}, {{raw.shape(), mx::float32}},
                        [slot, page = std::move(page), n, off, all = raw.size()](
                            const std::vector<const void *> &, const std::vector<void *> &out) {
                            float *y = static_cast<float *>(out[0]);
                            memset(y, 0, all * sizeof *y);
                            for (int64_t i = 0; i < n; i++)
                                for (int32_t h = 0; h < slot.n_kv_head; h++, y += slot.head_dim)
                                    unpack_row(y, slot,
                                               {page[(size_t)(i / KK_PAGE_ROWS)],
                                                (int32_t)(i % KK_PAGE_ROWS), KK_PAGE_ROWS},
                                               off, h);
                        })[0];
    const mx::Stream s = dev->stream;
    return mx::add(mx::multiply(truth, mx::array(by->mix), s),
                   mx::multiply(raw, mx::array(1.0f - by->mix), s), s);
}

/* What is left of rows [n, heads, d] once they were stored. */
static mx::array as_stored(kk_dev *dev, const kk_kv_slot &slot, const mx::array &x) {
    const size_t rows = x.size() / (size_t)slot.head_dim, d = (size_t)slot.head_dim;
    return kk_mlx_host(
        dev, {x}, {{x.shape(), mx::float32}},
        [slot, rows, d](const std::vector<const void *> &in, const std::vector<void *> &out) {
            const kk_kv_format_info *f = kk_kv_format_get(slot.format);
            const kk_kv_place at = kk_kv_row_place(slot.format, slot.head_dim, 1, 0);
            std::vector<uint8_t> row(kk_kv_row_bytes(slot.format, slot.head_dim));
            for (size_t r = 0; r < rows; r++) {
                f->pack(static_cast<const float *>(in[0]) + r * d, slot.head_dim, row.data(), at);
                f->unpack(static_cast<float *>(out[0]) + r * d, slot.head_dim, row.data(), at);
            }
        })[0];
}

/* K and V of evicted rows [from, to), [n_kv_head, n, d] each; `from` begins a page. */
static std::pair<mx::array, mx::array> rebuild(kk_dev *dev, const kk_attend_args *a,
                                               const kk_group *g, int64_t from, int64_t to) {
    const kk_evicted *e = a->evicted;
    const kk_kv_slot &slot = a->slot;
    const mx::Stream s = dev->stream;
    const int64_t end = (to + KK_PAGE_ROWS - 1) / KK_PAGE_ROWS * KK_PAGE_ROWS;
    const mx::array z = latents_at(dev, e->latent, g->latents, from, end, to);
    const auto raw = [&](const kk_weight *w, bool keys) {
        return mixed(dev, a, g, keys, decoded(dev, z, w, slot.n_kv_head), from, to);
    };
    const auto rounded = [&](const mx::array &x) {
        return e->diagnosis ? as_stored(dev, slot, x) : x;
    };
    /* By the factor that was kept, as on the CPU; true rows that are mixed in have none. */
    const mx::array decoded_v = raw(e->v, false);
    const mx::array v =
        e->diagnosis ? rounded(kk_mlx_norm_of(dev, decoded_v, nullptr, slot.head_dim, e->eps))
                     : mx::multiply(decoded_v, scales_at(dev, a, g, from, end, to), s);
    const mx::array angles = angles_at(e->rope, from, end);
    const mx::array k =
        slot.k_eq_v
            ? rotated(dev, mx::multiply(v, kk_mlx_get(dev, a->k_norm, (size_t)slot.head_dim), s),
                      angles, e->rope.n_rot)
            : rounded(rotated(
                  dev, kk_mlx_norm_of(dev, raw(e->k, true), a->k_norm, slot.head_dim, e->eps),
                  angles, e->rope.n_rot));
    const auto by_head = [&](const mx::array &x) {
        const mx::array cut =
            mx::slice(x, {0, 0, 0}, {kk_mlx_int(to - from), slot.n_kv_head, slot.head_dim}, s);
        return mx::transpose(cut, {1, 0, 2}, s);
    };
    return {by_head(k), by_head(v)};
}

/* Rows [from, to) of the same, of which all that the group's rows see are rebuilt at once: none of
 * them is of this forward. */
static std::pair<mx::array, mx::array> rebuilt_rows(kk_dev *dev, const kk_attend_args *a,
                                                    const kk_group *g, int64_t from, int64_t to) {
    const kk_evicted *e = a->evicted;
    const kk_kv_bounds bounds = {e->window, a->sink, e->chunk};
    const auto key = std::make_pair(e->layer, (int32_t)(g - a->rows->group));
    if (dev->rebuilt_forward != e->forward) dev->rebuilt.clear();
    dev->rebuilt_forward = e->forward;
    auto found = dev->rebuilt.find(key);
    if (!e->forward || found == dev->rebuilt.end() || found->second.from > from ||
        found->second.to < to) {
        const int64_t end = std::max(to, kk_kept_from(&bounds, g->pos + g->n_rows - 1));
        const auto made = rebuild(dev, a, g, from, end);
        found =
            dev->rebuilt.insert_or_assign(key, kk_mlx_rebuilt{from, end, made.first, made.second})
                .first;
    }
    const kk_mlx_rebuilt &r = found->second;
    const auto cut = [&](const mx::array &x) {
        return mx::slice(x, {0, kk_mlx_int(from - r.from), 0},
                         {x.shape(0), kk_mlx_int(to - r.from), x.shape(2)}, dev->stream);
    };
    return {cut(r.k), cut(r.v)};
}

/* A bf16 factor for each head of a row. */
kk_status kk_mlx_keep_scales(kk_dev *dev, const kk_scales_args *a, kk_err *err) {
    KK_TRY(check_groups(a->rows, err));
    return kk_mlx_try(err, "keeping scales", [&] {
        const int32_t n = a->rows->n_rows, heads = a->n_kv_head;
        const int32_t d = kk_mlx_int(a->v->n_out) / heads;
        const std::vector<target> to = targets_of(a->rows, true);
        const kk_kv_slot latent = a->latent, scales = a->scales;
        const mx::array z = kk_mlx_on_pages(
            dev, {}, {{{n, latent.head_dim}, mx::float32}},
            [to, latent](const std::vector<const void *> &, const std::vector<void *> &out) {
                float *row = static_cast<float *>(out[0]);
                for (const target &t : to) {
                    unpack_row(row, latent, {t.page, t.row, KK_PAGE_ROWS}, latent.v_off, 0);
                    row += latent.head_dim;
                }
            })[0];
        const mx::Stream s = dev->stream;
        const mx::array raw = mx::reshape(kk_mlx_product(dev, z, a->v), {n, heads, d}, s);
        const mx::array squares = mx::mean(mx::multiply(raw, raw, s), -1, false, s);
        const mx::array inv = mx::rsqrt(mx::add(squares, mx::array(a->eps), s), s);
        kk_mlx_on_pages(dev, {inv}, {},
                        [to, scales, heads, at = a->at](const std::vector<const void *> &in,
                                                        const std::vector<void *> &) {
                            const float *x = static_cast<const float *>(in[0]);
                            for (const target &t : to)
                                for (int32_t h = 0; h < heads; h++) {
                                    const uint16_t bits = kk_f32_bf16(*x++);
                                    memcpy(t.page + scales.v_off +
                                               2 * (size_t)(t.row * scales.head_dim + at + h),
                                           &bits, sizeof bits);
                                }
                        });
        dev->asked++;
        return KK_OK;
    });
}

/* ---- attention ----------------------------------------------------------------------------- */

/* Keys [from, to), which lie at [at, at + to - from) of what was gathered. */
struct key_run {
    int64_t from, to, at;
};

/* Rows [row, row + n) of a group, and all keys that they see. */
struct tile {
    const kk_attend_args *a;
    const kk_group *g;
    int32_t row, n;
    kk_visible_rule rule;
    std::vector<key_run> runs; /* in the order of positions */
    int64_t keys = 0;
};

static void find_keys(tile &t) {
    kk_mlx_ranges all;
    for (int32_t r = 0; r < t.n; r++)
        for (const auto &range : kk_mlx_seen(t.a, t.rule, t.g, t.row + r)) all.push_back(range);
    std::sort(all.begin(), all.end());
    for (const auto &range : all) {
        if (!t.runs.empty() && range.first <= t.runs.back().to)
            t.runs.back().to = std::max(t.runs.back().to, range.second);
        else
            t.runs.push_back({range.first, range.second, 0});
    }
    for (key_run &run : t.runs) {
        run.at = t.keys;
        t.keys += run.to - run.from;
    }
}

/* Where a position that some row sees lies among the keys. */
static int64_t index_of(const tile &t, int64_t pos) {
    for (const key_run &run : t.runs)
        if (pos < run.to) return run.at + (pos - run.from);
    return t.keys;
}

/* K and V of all keys of a tile, [1, n_kv_head, keys, d]. */
static std::vector<mx::array> keys_of(kk_dev *dev, const tile &t) {
    const kk_attend_args *a = t.a;
    const mx::Stream s = dev->stream;
    const bool rebuilds = a->evicted && a->evicted->rebuilds;
    const int64_t kept = rebuilds ? kk_kept_from(&t.rule.bounds, t.g->pos + t.row) : 0;
    std::vector<int64_t> stored;
    int64_t gone_from = 0, gone_to = 0, gone_at = 0;
    for (const key_run &run : t.runs)
        for (int64_t p = run.from; p < run.to; p++) {
            if (!rebuilds || p < a->sink || p >= kept) {
                stored.push_back(p);
                continue;
            }
            if (gone_to == 0) {
                gone_from = p;
                gone_at = (int64_t)stored.size();
            }
            gone_to = p + 1;
        }
    std::vector<mx::array> kv;
    if (!stored.empty()) kv = stored_rows(dev, a, t.g, stored);
    if (gone_to) {
        const int64_t page = gone_from / KK_PAGE_ROWS * KK_PAGE_ROWS;
        const auto rebuilt = rebuilt_rows(dev, a, t.g, page, gone_to);
        const mx::array *both[] = {&rebuilt.first, &rebuilt.second};
        std::vector<mx::array> joined;
        for (size_t i = 0; i < 2; i++) {
            const int heads = a->slot.n_kv_head, d = a->slot.head_dim;
            const auto cut = [&](const mx::array &x, int64_t from, int64_t to) {
                return mx::slice(x, {0, kk_mlx_int(from), 0}, {heads, kk_mlx_int(to), d}, s);
            };
            std::vector<mx::array> parts;
            if (gone_at) parts.push_back(cut(kv[i], 0, gone_at));
            parts.push_back(cut(*both[i], gone_from - page, gone_to - page));
            if (gone_at < (int64_t)stored.size())
                parts.push_back(cut(kv[i], gone_at, (int64_t)stored.size()));
            joined.push_back(parts.size() > 1 ? mx::concatenate(parts, 1, s) : parts[0]);
        }
        kv = joined;
    }
    for (mx::array &x : kv) x = mx::expand_dims(x, 0, s);
    return kv;
}

/* q [rows, n_head, d] over keys and values [1, n_kv_head, n, d]: [rows, n_head * d]. */
static mx::array weighted(kk_dev *dev, const kk_attend_args *a, const mx::array &q,
                          const mx::array &k, const mx::array &v,
                          const std::optional<mx::array> &mask) {
    const mx::Stream s = dev->stream;
    const int rows = q.shape(0), width = a->n_head * a->slot.head_dim;
    const mx::array by_head = mx::expand_dims(mx::transpose(q, {1, 0, 2}, s), 0, s);
    const mx::array y = mx::fast::scaled_dot_product_attention(
        by_head, k, v, a->scale, mask ? "array" : "", mask, std::nullopt, false, s);
    return mx::reshape(mx::transpose(mx::squeeze(y, 0, s), {1, 0, 2}, s), {rows, width}, s);
}

/* A row alone, over what it sees and nothing else. */
static mx::array attend_row(kk_dev *dev, const tile &t, int32_t r, const mx::array &q,
                            const std::vector<mx::array> &kv) {
    const kk_kv_slot &slot = t.a->slot;
    std::vector<mx::array> k, v;
    int64_t from = -1, to = -1;
    const auto take = [&] {
        const auto cut = [&](const mx::array &x) {
            return mx::slice(x, {0, 0, kk_mlx_int(from), 0},
                             {1, slot.n_kv_head, kk_mlx_int(to), slot.head_dim}, dev->stream);
        };
        k.push_back(cut(kv[0]));
        v.push_back(cut(kv[1]));
    };
    for (const auto &range : kk_mlx_seen(t.a, t.rule, t.g, t.row + r)) {
        const int64_t at = index_of(t, range.first), end = at + (range.second - range.first);
        if (at != to && to >= 0) take();
        if (at != to) from = at;
        to = end;
    }
    take();
    if (k.size() > 1) k = {mx::concatenate(k, 2, dev->stream)};
    if (v.size() > 1) v = {mx::concatenate(v, 2, dev->stream)};
    return weighted(dev, t.a, q, k[0], v[0], std::nullopt);
}

/* True where a row of the tile sees a key: [n, keys]. */
static mx::array mask_of(const tile &t) {
    std::vector<uint8_t> sees((size_t)t.n * (size_t)t.keys);
    for (int32_t r = 0; r < t.n; r++)
        for (const auto &range : kk_mlx_seen(t.a, t.rule, t.g, t.row + r)) {
            const int64_t at = index_of(t, range.first);
            memset(sees.data() + (size_t)r * (size_t)t.keys + at, 1,
                   (size_t)(range.second - range.first));
        }
    return mx::array(reinterpret_cast<const bool *>(sees.data()), {t.n, kk_mlx_int(t.keys)},
                     mx::bool_);
}

static mx::array attend_tile(kk_dev *dev, tile &t, const mx::array &q, bool alone) {
    find_keys(t);
    const std::vector<mx::array> kv = keys_of(dev, t);
    if (!alone) return weighted(dev, t.a, q, kv[0], kv[1], mask_of(t));
    std::vector<mx::array> rows;
    for (int32_t r = 0; r < t.n; r++) {
        const mx::array one = mx::slice(q, {r, 0, 0}, {r + 1, q.shape(1), q.shape(2)}, dev->stream);
        rows.push_back(attend_row(dev, t, r, one, kv));
    }
    return rows.size() > 1 ? mx::concatenate(rows, 0, dev->stream) : rows[0];
}

/* Rows of a group from `row` on that are attended to together: they share a chunk, and those of a
 * prompt are not too many. */
static int32_t tile_rows(const kk_attend_args *a, const kk_group *g, int32_t row, bool alone) {
    int64_t n = g->n_rows - row;
    if (!alone && !a->block) n = std::min(n, (int64_t)TILE_ROWS);
    if (a->evicted) {
        const kk_visible_rule rule = kk_mlx_rule_of(a);
        n = std::min(n, kk_chunk_end(&rule.bounds, g->pos + row) - (g->pos + row));
    }
    return (int32_t)n;
}

mx::array kk_mlx_plain_attend(kk_dev *dev, const kk_attend_args *a, const mx::array &q) {
    const bool alone = a->rows->n_rows <= KK_MLX_ROUND_ROWS && !dev->unlimited;
    std::vector<mx::array> parts;
    for (int32_t i = 0; i < a->rows->n_groups; i++) {
        const kk_group *g = &a->rows->group[i];
        for (int32_t row = 0, n; row < g->n_rows; row += n) {
            n = tile_rows(a, g, row, alone);
            tile t = {a, g, row, n, kk_mlx_rule_of(a), {}};
            const int first = g->row + row;
            const mx::array rows =
                mx::slice(q, {first, 0, 0}, {first + n, q.shape(1), q.shape(2)}, dev->stream);
            parts.push_back(attend_tile(dev, t, rows, alone));
        }
    }
    return parts.size() > 1 ? mx::concatenate(parts, 0, dev->stream) : parts[0];
}

kk_status kk_mlx_attend(kk_dev *dev, const kk_attend_args *a, kk_err *err) {
    KK_TRY(check_heads(&a->slot, a->n_head, err));
    KK_TRY(check_groups(a->rows, err));
    return kk_mlx_try(err, "attention", [&] {
        const mx::array q = heads_of(dev, a->q, a->rows->n_rows, a->n_head, a->slot.head_dim);
        const bool by_pages =
            dev->kernels && a->rows->n_rows <= KK_MLX_ROUND_ROWS && kk_mlx_pages_fit(a);
        kk_mlx_put(dev, a->out,
                   by_pages ? kk_mlx_pages_attend(dev, a, q) : kk_mlx_plain_attend(dev, a, q));
        return KK_OK;
    });
}
