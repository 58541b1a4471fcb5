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
#include <cstdlib>

#include "backend/mlx/mlx_device.h"

extern "C" {
#include "core/span.h"
}

enum { HALF = 16, GROUP = 32, BLOCK_MOST = 256 };

/* ---- codes of a block of GGUF -------------------------------------------------------------- */

/* A block with a scale and a bias for every group, or half group, in order. */
struct codes {
    uint8_t code[BLOCK_MOST];
    float scale[BLOCK_MOST / HALF], bias[BLOCK_MOST / HALF];
};

static float f16_at(const uint8_t *p) { return kk_f16_f32(kk_le16(p)); }

static void one_group(codes *c, float scale, float bias) {
    c->scale[0] = scale;
    c->bias[0] = bias;
}

static void q8_0_codes(const uint8_t *b, codes *c) {
    const float d = f16_at(b);
    for (int i = 0; i < GROUP; i++) c->code[i] = (uint8_t)(b[2 + i] ^ 0x80);
    one_group(c, d, -128 * d);
}

static void nibbles(const uint8_t *q, uint8_t *code) {
    for (int i = 0; i < GROUP / 2; i++) {
        code[i] = q[i] & 15;
        code[i + GROUP / 2] = q[i] >> 4;
    }
}

static void q4_0_codes(const uint8_t *b, codes *c) {
    const float d = f16_at(b);
    nibbles(b + 2, c->code);
    one_group(c, d, -8 * d);
}

static void fifth_bits(const uint8_t *high, uint8_t *code) {
    const uint32_t bits = kk_le32(high);
    for (int i = 0; i < GROUP; i++) code[i] = (uint8_t)(code[i] | ((bits >> i) & 1) << 4);
}

static void q5_0_codes(const uint8_t *b, codes *c) {
    const float d = f16_at(b);
    nibbles(b + 6, c->code);
    fifth_bits(b + 2, c->code);
    one_group(c, d, -16 * d);
}

static void q5_1_codes(const uint8_t *b, codes *c) {
    nibbles(b + 8, c->code);
    fifth_bits(b + 4, c->code);
    one_group(c, f16_at(b), f16_at(b + 2));
}

/* As dtype.c reads them; high NULL: Q4_K. */
static void k_codes(const uint8_t *b, const uint8_t *high, const uint8_t *low, codes *c) {
    const float d = f16_at(b), dmin = f16_at(b + 2);
    const uint8_t *s = b + 4;
    for (int run = 0; run < 8; run++) {
        const int scale = run < 4 ? s[run] & 63 : (s[run + 4] & 15) | (s[run - 4] >> 6) << 4;
        const int min = run < 4 ? s[run + 4] & 63 : (s[run + 4] >> 4) | (s[run] >> 6) << 4;
        c->scale[run] = d * (float)scale;
        c->bias[run] = -(dmin * (float)min);
        for (int i = 0; i < GROUP; i++) {
            const uint8_t byte = low[run / 2 * GROUP + i];
            const int fifth = high ? ((high[i] >> run) & 1) << 4 : 0;
            c->code[run * GROUP + i] = (uint8_t)((run % 2 ? byte >> 4 : byte & 15) | fifth);
        }
    }
}

static void q4_k_codes(const uint8_t *b, codes *c) { k_codes(b, nullptr, b + 16, c); }
static void q5_k_codes(const uint8_t *b, codes *c) { k_codes(b, b + 16, b + 48, c); }

static void q6_k_codes(const uint8_t *b, codes *c) {
    const float d = f16_at(b + 208);
    for (int i = 0; i < BLOCK_MOST; i++) {
        const int half = i / 128, run = i % 128 / GROUP, at = i % GROUP;
        const uint8_t byte = b[half * 64 + at + GROUP * (run % 2)];
        const int top = (b[128 + half * GROUP + at] >> (2 * run)) & 3;
        c->code[i] = (uint8_t)((run < 2 ? byte & 15 : byte >> 4) | top << 4);
    }
    for (int i = 0; i < BLOCK_MOST / HALF; i++) {
        c->scale[i] = d * (float)(int8_t)b[192 + i];
        c->bias[i] = -32 * c->scale[i];
    }
}

/* How a type is packed; `halves`: its scales are of half groups. */
struct packing {
    int bits;
    bool halves;
    void (*read)(const uint8_t *block, codes *c);
};

static const packing *packing_of(kk_dtype t) {
    switch (t) {
    case KK_Q8_0: {
        static const packing p = {8, false, q8_0_codes};
        return &p;
    }
    case KK_Q4_0: {
        static const packing p = {4, false, q4_0_codes};
        return &p;
    }
    case KK_Q5_0: {
        static const packing p = {5, false, q5_0_codes};
        return &p;
    }
    case KK_Q5_1: {
        static const packing p = {5, false, q5_1_codes};
        return &p;
    }
    case KK_Q4_K: {
        static const packing p = {4, false, q4_k_codes};
        return &p;
    }
    case KK_Q5_K: {
        static const packing p = {5, false, q5_k_codes};
        return &p;
    }
    case KK_Q6_K: {
        static const packing p = {6, true, q6_k_codes};
        return &p;
    }
    default: return nullptr;
    }
}

/* n codes of so many bits, the first in the lowest; together they are whole bytes. */
static uint8_t *pack(const uint8_t *code, size_t n, int bits, uint8_t *to) {
    uint32_t held = 0;
    int have = 0;
    for (size_t i = 0; i < n; i++) {
        held |= (uint32_t)code[i] << have;
        for (have += bits; have >= 8; have -= 8, held >>= 8) *to++ = (uint8_t)held;
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

static void make_floats(kk_weight *w, const kk_matrix *m, size_t row_bytes) {
    const size_t rows = (size_t)(m->n_mat * m->n_out), n = (size_t)m->n_in;
    filled floats(rows * n * sizeof(float));
    const uint8_t *from = static_cast<const uint8_t *>(m->data);
    for (size_t r = 0; r < rows; r++)
        kk_dequantize(m->dtype, from + r * row_bytes, floats.at<float>() + r * n, n);
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

static void make_packed(kk_weight *w, const kk_matrix *m, size_t row_bytes, const packing *p) {
    const kk_dtype_info *info = kk_dtype_get(m->dtype);
    const size_t rows = (size_t)(m->n_mat * m->n_out), values = (size_t)info->values;
    const size_t blocks = rows * row_bytes / (size_t)info->bytes, sets = p->halves ? 2 : 1;
    const size_t groups = blocks * values / GROUP, plane = groups * sizeof(float);
    filled words(blocks * values * (size_t)p->bits / 8);
    std::vector<filled> scales, biases;
    for (size_t s = 0; s < sets; s++) {
        scales.emplace_back(plane);
        biases.emplace_back(plane);
    }
    const uint8_t *from = static_cast<const uint8_t *>(m->data);
    uint8_t *to = words.at<uint8_t>();
    for (size_t b = 0, g = 0; b < blocks; b++, from += info->bytes, g += values / GROUP) {
        codes c;
        p->read(from, &c);
        to = pack(c.code, values, p->bits, to);
        for (size_t i = 0; i < values / GROUP * sets; i++) {
            scales[i % sets].at<float>()[g + i / sets] = c.scale[i];
            biases[i % sets].at<float>()[g + i / sets] = c.bias[i];
        }
    }
    w->bits = p->bits;
    w->group = GROUP;
    w->bytes = (int64_t)(words.bytes() + 2 * sets * plane);
    w->w = words.as(shape_of(m, m->n_in * p->bits / 32), mx::uint32);
    for (size_t s = 0; s < sets; s++)
        w->planes.push_back({scales[s].as(shape_of(m, m->n_in / GROUP), mx::float32),
                             biases[s].as(shape_of(m, m->n_in / GROUP), mx::float32)});
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
            make_packed(w.get(), m, row_bytes, p);
        else
            make_floats(w.get(), m, row_bytes);
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
