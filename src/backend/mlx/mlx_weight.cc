/* mlx_weight.cc - matrices as MLX multiplies them: float32, or packed.
 *
 * Quantised types stay packed, MLX's own and those of GGUF.  MLX's affine form has codes in
 * words of 32 bits, the first in the lowest bits, and value = scale * code + bias for every 32 or
 * 64 codes of a row; every type of GGUF that the engine reads can be written so without a loss.
 * Q6_K has a scale for every 16 values, where MLX's groups have at least 32: such a matrix has two
 * sets of scales, of the first and of the second half of each group, and is multiplied once with
 * each by inputs whose other halves are 0.
 *
 * Scales and biases are float32, as activations are: MLX would convert others at every product.
 * Types of 16 bits become float32, since MLX multiplies what has one type. */
#include <algorithm>
#include <cstdlib>
#include <thread>

#include "backend/mlx/mlx_device.h"

extern "C" {
#include "core/codes.h"
}

enum { HALF = 16, GROUP = KK_CODES };

/* ---- how types of GGUF are packed ---------------------------------------------------------- */

struct packing {
    kk_dtype type;
    int bits, zero; /* of a code; what is added so that no code is negative */
    bool halves;    /* scales are of half groups */
};

static const packing *packing_of(kk_dtype t) {
    static const packing table[] = {{KK_Q8_0, 8, 128, false}, {KK_Q4_0, 4, 8, false},
                                    {KK_Q5_0, 5, 16, false},  {KK_Q5_1, 5, 0, false},
                                    {KK_Q4_K, 4, 0, false},   {KK_Q5_K, 5, 0, false},
                                    {KK_Q6_K, 6, 32, true}};
    for (const packing &p : table)
        if (p.type == t) return &p;
    return nullptr;
}

/* A group's codes, the first in the lowest bits; together they are whole bytes. */
static uint8_t *pack(const kk_codes &c, const packing *p, uint8_t *to) {
    uint32_t held = 0;
    int have = 0;
    for (int32_t q : c.q) {
        held |= (uint32_t)(q + p->zero) << have;
        for (have += p->bits; have >= 8; have -= 8, held >>= 8) *to++ = (uint8_t)held;
    }
    return to;
}

/* ---- weights ------------------------------------------------------------------------------- */

/* Memory of MLX's own, filled before it becomes an array. */
class filled {
  public:
    /* MLX hands out no memory without a word, or more than the machine has. */
    explicit filled(size_t bytes) : data_(taken(bytes)), bytes_(bytes) {
        if (bytes && !at<void>()) throw std::bad_alloc();
    }
    template <typename T> T *at() {
        mx::allocator::Buffer buffer = data_.buffer();
        return static_cast<T *>(buffer.raw_ptr());
    }
    size_t bytes() const { return bytes_; }
    mx::array as(const mx::Shape &shape, mx::Dtype type) {
        return mx::array(std::move(data_), shape, type);
    }

  private:
    static mx::allocator::Data taken(size_t bytes) {
        const size_t used = mx::get_active_memory(), limit = mx::get_memory_limit();
        if (used > limit || bytes > limit - used) throw std::bad_alloc();
        return mx::allocator::malloc(bytes);
    }

    mx::allocator::Data data_;
    size_t bytes_;
};

/* [rows, width], or of several matrices [n_mat, n_out, width]. */
static mx::Shape shape_of(const kk_matrix *m, int64_t width) {
    if (m->n_mat == 1) return {kk_mlx_int(m->n_out), kk_mlx_int(width)};
    return {kk_mlx_int(m->n_mat), kk_mlx_int(m->n_out), kk_mlx_int(width)};
}

/* Runs f(from, to) over all rows, of `width` values each, shared out among threads where they are
 * many.  f throws nothing. */
template <typename F> static void each_row(const kk_dev *dev, size_t rows, size_t width, F &&f) {
    constexpr size_t worth = (size_t)1 << 18; /* values that are worth a thread */
    const size_t most = std::max(rows * width / worth, (size_t)1);
    const size_t n = std::min({most, rows, (size_t)dev->threads});
    std::vector<std::thread> others;
    size_t from = 0;
    try {
        others.reserve(n);
        for (size_t i = 1; i < n; i++) {
            const size_t to = rows * i / n;
            others.emplace_back([&f, from, to] { f(from, to); });
            from = to;
        }
    } catch (...) { /* what they do not take is left for this one */
    }
    f(from, rows);
    for (std::thread &t : others) t.join();
}

int64_t kk_mlx_stored(kk_dtype type, int64_t values) {
    constexpr int64_t plane = sizeof(float);
    const packing *p = packing_of(type);
    if (kk_dtype_is_affine(type))
        return values * kk_affine_bits(type) / 8 + values / kk_dtype_get(type)->values * 2 * plane;
    if (!p) return values * plane;
    return values * p->bits / 8 + values / GROUP * 2 * plane * (p->halves ? 2 : 1);
}

static void make_floats(const kk_dev *dev, kk_weight *w, const kk_matrix *m, size_t row_bytes) {
    const size_t rows = (size_t)(m->n_mat * m->n_out), n = (size_t)m->n_in;
    filled floats(rows * n * sizeof(float));
    const uint8_t *from = static_cast<const uint8_t *>(m->data);
    float *to = floats.at<float>();
    each_row(dev, rows, n, [=](size_t first, size_t end) {
        for (size_t r = first; r < end; r++)
            kk_dequantize(m->dtype, from + r * row_bytes, to + r * n, n);
    });
    w->bytes = (int64_t)floats.bytes();
    w->w = floats.as(shape_of(m, m->n_in), mx::float32);
}

/* Codes of MLX's types lie as they are multiplied. */
static void make_affine(kk_weight *w, const kk_matrix *m, size_t row_bytes) {
    const size_t rows = (size_t)(m->n_mat * m->n_out);
    w->bits = kk_affine_bits(m->dtype);
    w->group = kk_dtype_get(m->dtype)->values;
    const size_t groups = rows * (size_t)(m->n_in / w->group);
    filled words(rows * row_bytes), scales(groups * sizeof(float)), biases(groups * sizeof(float));
    memcpy(words.at<uint8_t>(), m->data, words.bytes());
    kk_dequantize(m->planes.type, m->planes.scales, scales.at<float>(), groups);
    kk_dequantize(m->planes.type, m->planes.biases, biases.at<float>(), groups);
    w->bytes = (int64_t)(words.bytes() + scales.bytes() + biases.bytes());
    w->w = words.as(shape_of(m, (int64_t)row_bytes / 4), mx::uint32);
    const mx::Shape by_group = shape_of(m, m->n_in / w->group);
    w->planes.push_back({scales.as(by_group, mx::float32), biases.as(by_group, mx::float32)});
}

/* 1 for the first half of every group of a row, 0 for the second. */
static mx::array first_halves(int64_t n) {
    std::vector<float> mask((size_t)n);
    for (size_t i = 0; i < mask.size(); i++) mask[i] = i % GROUP < HALF ? 1.0f : 0.0f;
    return mx::array(mask.data(), {kk_mlx_int(n)}, mx::float32);
}

/* Where a matrix is packed to: rows of words, and of each set a scale and a bias for each group. */
struct packed_rows {
    uint8_t *words;
    float *scales[2], *biases[2];
};

static void pack_rows(const packed_rows &to, const kk_matrix *m, size_t row_bytes, const packing *p,
                      size_t first, size_t end) {
    const size_t in_row = (size_t)m->n_in / GROUP, sets = p->halves ? 2 : 1;
    const uint8_t *from = static_cast<const uint8_t *>(m->data);
    uint8_t *words = to.words + first * in_row * GROUP * (size_t)p->bits / 8;
    for (size_t r = first; r < end; r++)
        for (size_t i = 0; i < in_row; i++) {
            const size_t g = r * in_row + i;
            kk_codes c;
            kk_codes_read(&c, m->dtype, from + r * row_bytes, (int32_t)i);
            words = pack(c, p, words);
            for (size_t s = 0; s < sets; s++) {
                const float scale = c.d * (float)c.scale[s];
                to.scales[s][g] = scale;
                to.biases[s][g] = c.m * (float)c.min - (float)p->zero * scale;
            }
        }
}

static void make_packed(const kk_dev *dev, kk_weight *w, const kk_matrix *m, size_t row_bytes,
                        const packing *p) {
    const size_t rows = (size_t)(m->n_mat * m->n_out), sets = p->halves ? 2 : 1;
    const int32_t in_row = (int32_t)(m->n_in / GROUP);
    const size_t groups = rows * (size_t)in_row, plane = groups * sizeof(float);
    filled words(groups * GROUP * (size_t)p->bits / 8);
    std::vector<filled> scales, biases;
    for (size_t s = 0; s < sets; s++) {
        scales.emplace_back(plane);
        biases.emplace_back(plane);
    }
    packed_rows to = {words.at<uint8_t>(), {}, {}};
    for (size_t s = 0; s < sets; s++) {
        to.scales[s] = scales[s].at<float>();
        to.biases[s] = biases[s].at<float>();
    }
    each_row(dev, rows, (size_t)m->n_in,
             [&](size_t first, size_t end) { pack_rows(to, m, row_bytes, p, first, end); });
    w->bits = p->bits;
    w->group = GROUP;
    w->bytes = (int64_t)(words.bytes() + 2 * sets * plane);
    w->w = words.as(shape_of(m, m->n_in * p->bits / 32), mx::uint32);
    const mx::Shape by_group = shape_of(m, in_row);
    for (size_t s = 0; s < sets; s++)
        w->planes.push_back(
            {scales[s].as(by_group, mx::float32), biases[s].as(by_group, mx::float32)});
    if (p->halves) w->halves = first_halves(m->n_in);
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
        const packing *p = packing_of(m->dtype);
        w->n_mat = m->n_mat;
        w->n_out = m->n_out;
        w->n_in = m->n_in;
        if (kk_dtype_is_affine(m->dtype))
            make_affine(w.get(), m, row_bytes);
        else if (p)
            make_packed(dev, w.get(), m, row_bytes, p);
        else
            make_floats(dev, w.get(), m, row_bytes);
        dev->weights += w->bytes;
        if (w->bits) dev->packed += w->bytes;
        *out = w.release();
        return KK_OK;
    });
}

void kk_mlx_weight_free(kk_dev *dev, kk_weight *w) {
    if (!w) return;
    dev->weights -= w->bytes;
    if (w->bits) dev->packed -= w->bytes;
    delete w;
}

mx::array kk_mlx_lookup(kk_dev *dev, const kk_weight *w, const mx::array &ids) {
    const mx::Stream s = dev->stream;
    const mx::array rows = mx::take(*w->w, ids, 0, s);
    if (!w->bits) return rows;
    std::vector<mx::array> by_set;
    for (const kk_mlx_planes &p : w->planes)
        by_set.push_back(mx::dequantize(rows, mx::take(p.scales, ids, 0, s),
                                        mx::take(p.biases, ids, 0, s), w->group, w->bits, "affine",
                                        std::nullopt, std::nullopt, s));
    if (!w->halves) return by_set[0];
    return mx::where(mx::greater(*w->halves, mx::array(0.5f), s), by_set[0], by_set[1], s);
}
