/* mlx_pages.cc - see mlx_pages.h.
 *
 * Parts are cut at multiples of 256 positions and where a sink ends, whichever rows are of the
 * forward; the first begins where the row's window does.  So a row's sums depend on its position
 * alone. */
#include "backend/mlx/mlx_pages.h"

#include <algorithm>

#include <mlx/backend/metal/metal.h>

#include "backend/mlx/mlx_seen.h"
#include "mlx_pages_text.h"

namespace {

constexpr int PART_ROWS = 256, WORDS = 8, LANES = 32, GROUPS = 8, LEAST = 8;
/* Values of sums that one call of the kernel makes at most, 64 MiB. */
constexpr int64_t most_sums = (int64_t)16 << 20;

#define KK_TEXT_OF(...) #__VA_ARGS__
#define KK_TEXT(...) KK_TEXT_OF(__VA_ARGS__)

static_assert(KK_PAGE_ROWS == 64 && PART_ROWS % KK_PAGE_ROWS == 0);
static_assert(KK_KV_BF16 == 0 && KK_KV_F32 == 1 && KK_KV_Q8 == 2 && KK_KV_Q4 == 3 && KK_KV_S8 == 4);

} // namespace

const std::vector<std::string> kk_mlx_part_inputs = {"q",     "pages",  "blocks", "parts",
                                                     "sizes", "k_norm", "angles", "order"};
const std::vector<std::string> kk_mlx_join_inputs = {"sums", "tops", "rows", "sizes"};

/* ---- plans --------------------------------------------------------------------------------- */

bool kk_mlx_pages_fit(const kk_attend_args *a) {
    const kk_kv_slot &s = a->slot;
    const bool known = s.format == KK_KV_BF16 || s.format == KK_KV_F32 || s.format == KK_KV_Q8 ||
                       s.format == KK_KV_Q4 || s.format == KK_KV_S8;
    return known && s.head_dim % 2 == 0 && s.head_dim * s.n_kv_head >= LEAST &&
           s.k_off <= INT32_MAX && s.v_off <= INT32_MAX && !(a->evicted && a->evicted->rebuilds);
}

/* Where the block of a row lies, and the row in it.  A sink that is whole is read where it is kept
 * apart, and before that in its page. */
static int64_t place_of(const uint8_t *block, const kk_mlx_kernels *k) {
    const auto at = reinterpret_cast<uintptr_t>(block), base = reinterpret_cast<uintptr_t>(k->base);
    if (!block || at - base >= k->bytes) throw std::runtime_error("a page is not where pages lie");
    return static_cast<int64_t>(at - base);
}

/* Positions [from, to) that row `row` of the forward sees, within one part. */
static void add_part(kk_mlx_plan &plan, const kk_attend_args *a, const kk_group *g,
                     const kk_mlx_kernels *k, int32_t row, int64_t from, int64_t to) {
    const bool sunk = g->sink && from < a->sink && (g->pos >= a->sink || !g->pages[0]);
    const int32_t words[WORDS] = {
        row,           (int32_t)plan.blocks.size(), (int32_t)(sunk ? from : from % KK_PAGE_ROWS),
        (int32_t)from, (int32_t)(to - from),        sunk ? a->sink : (int32_t)KK_PAGE_ROWS};
    plan.parts.insert(plan.parts.end(), words, words + WORDS);
    if (sunk) {
        plan.blocks.push_back(place_of(g->sink, k));
        return;
    }
    for (int64_t page = from / KK_PAGE_ROWS; page * KK_PAGE_ROWS < to; page++)
        plan.blocks.push_back(place_of(g->pages[page], k));
}

static void add_row(kk_mlx_plan &plan, const kk_attend_args *a, const kk_group *g,
                    const kk_mlx_kernels *k, int32_t row, int32_t at) {
    const kk_visible_rule rule = kk_mlx_rule_of(a);
    const int32_t first = (int32_t)(plan.parts.size() / WORDS);
    for (const auto &range : kk_mlx_seen(a, rule, g, row))
        for (int64_t from = range.first, to; from < range.second; from = to) {
            to = std::min(range.second, (from / PART_ROWS + 1) * PART_ROWS);
            if (g->sink && from < a->sink) to = std::min(to, (int64_t)a->sink);
            add_part(plan, a, g, k, at, from, to);
        }
    plan.rows.push_back(first);
    plan.rows.push_back((int32_t)(plan.parts.size() / WORDS) - first);
}

kk_mlx_plan kk_mlx_pages_plan(const kk_attend_args *a, const kk_mlx_kernels *k, int32_t from,
                              int32_t to) {
    kk_mlx_plan plan;
    for (int32_t i = 0; i < a->rows->n_groups; i++) {
        const kk_group *g = &a->rows->group[i];
        for (int32_t r = 0; r < g->n_rows; r++)
            if (g->row + r >= from && g->row + r < to) add_row(plan, a, g, k, r, g->row + r - from);
    }
    return plan;
}

/* ---- graph --------------------------------------------------------------------------------- */

/* MLX hands over inputs of fewer than eight values by another kind of pointer. */
template <typename T> static mx::array list_of(std::vector<T> v, mx::Dtype type) {
    if (v.size() < LEAST) v.resize(LEAST);
    return mx::array(v.data(), {kk_mlx_int((int64_t)v.size())}, type);
}

/* The same of an array: of few heads and parts. */
static mx::array at_least(kk_dev *dev, const mx::array &x) {
    const int lacks = LEAST - kk_mlx_int((int64_t)x.size());
    if (lacks <= 0) return x;
    const mx::Stream s = dev->stream;
    return mx::concatenate({mx::reshape(x, {-1}, s), mx::zeros({lacks}, x.dtype(), s)}, 0, s);
}

static mx::array sizes_of(const kk_attend_args *a) {
    int32_t scale;
    static_assert(sizeof scale == sizeof a->scale);
    memcpy(&scale, &a->scale, sizeof scale);
    return list_of<int32_t>({a->n_head, a->slot.n_kv_head, a->n_rot, (int32_t)a->slot.k_off,
                             (int32_t)a->slot.v_off, scale},
                            mx::int32);
}

/* What K is made with where it is V; else something of the least size. */
static mx::array vector_of(kk_dev *dev, const kk_buf *b, size_t n) {
    if (!b || n == 0) return mx::zeros({LEAST}, mx::float32, dev->stream);
    return at_least(dev, kk_mlx_get(dev, b, n));
}

/* Angles of all positions up to the last one that is seen. */
static size_t words_of_angles(const kk_attend_args *a) {
    int64_t end = 0;
    for (int32_t i = 0; i < a->rows->n_groups; i++)
        end = std::max(end, a->rows->group[i].pos + a->rows->group[i].n_rows);
    return a->slot.k_eq_v ? (size_t)end * 2 * (size_t)a->n_rot : 0;
}

static mx::array attend_rows(kk_dev *dev, const kk_attend_args *a, const mx::array &q,
                             const kk_mlx_plan &plan) {
    const mx::Stream s = dev->stream;
    const int n = q.shape(0), heads = a->n_head, d = a->slot.head_dim;
    const int parts = kk_mlx_int((int64_t)plan.parts.size()) / WORDS;
    const int at_once = std::min(heads / a->slot.n_kv_head, GROUPS);
    const mx::array sizes = sizes_of(a);
    /* What was asked of pages before is done before; a kernel is made anew for other shapes. */
    const mx::array order = dev->pages_done ? *dev->pages_done : mx::zeros({1}, mx::int32, s);
    const auto made = dev->kernels->part(
        {q, dev->kernels->shown(), list_of(plan.blocks, mx::int64), list_of(plan.parts, mx::int32),
         sizes, vector_of(dev, a->k_norm, (size_t)d),
         vector_of(dev, a->rope_pos, words_of_angles(a)), order},
        {{parts, heads, d}, {parts, heads, 2}}, {mx::float32, mx::float32}, {LANES, heads, parts},
        {LANES, at_once, 1},
        {{"D", d}, {"FORMAT", (int)a->slot.format}, {"K_IS_V", a->slot.k_eq_v}}, std::nullopt,
        false, s);
    const mx::array words = mx::view(mx::reshape(made[1], {-1}, s), mx::int32, s);
    dev->pages_done = mx::slice(words, {0}, {1}, s);
    dev->asked++;
    const auto joined = dev->kernels->join(
        {at_least(dev, made[0]), at_least(dev, made[1]), list_of(plan.rows, mx::int32), sizes},
        {{n, heads * d}}, {mx::float32}, {d, heads, n}, {std::min(d, 256), 1, 1}, {{"D", d}},
        std::nullopt, false, s);
    return joined[0];
}

/* Rows from `from` on whose sums are not too many for one call; one at least. */
static int32_t rows_at_once(const kk_attend_args *a, int32_t from) {
    int64_t sums = 0;
    for (int32_t row = from; row < a->rows->n_rows; row++) {
        int64_t pos = 0;
        for (int32_t i = 0; i < a->rows->n_groups; i++)
            if (a->rows->group[i].row <= row)
                pos = a->rows->group[i].pos + a->rows->group[i].n_rows;
        const int64_t keys = a->window ? std::min<int64_t>(pos, a->window + a->sink) : pos;
        sums += (keys / PART_ROWS + 3) * a->n_head * a->slot.head_dim;
        if (sums > most_sums && row > from) return row;
    }
    return a->rows->n_rows;
}

mx::array kk_mlx_pages_attend(kk_dev *dev, const kk_attend_args *a, const mx::array &q) {
    std::vector<mx::array> all;
    for (int32_t from = 0, to; from < a->rows->n_rows; from = to) {
        to = rows_at_once(a, from);
        if (dev->page_rows > 0 && !dev->unlimited) to = std::min(to, from + dev->page_rows);
        const mx::array rows =
            to - from == q.shape(0)
                ? q
                : mx::slice(q, {from, 0, 0}, {to, q.shape(1), q.shape(2)}, dev->stream);
        all.push_back(
            attend_rows(dev, a, rows, kk_mlx_pages_plan(a, dev->kernels.get(), from, to)));
    }
    return all.size() > 1 ? mx::concatenate(all, 0, dev->stream) : all[0];
}

std::unique_ptr<kk_mlx_kernels> kk_mlx_metal_kernels(kk_dev *dev) {
    if (!mx::metal::is_available() || dev->stream.device != mx::Device::gpu) return nullptr;
    if (!dev->arena.reserve()) throw std::bad_alloc();
    const std::string text(reinterpret_cast<const char *>(mlx_pages_text));
    auto k = std::make_unique<kk_mlx_kernels>();
    k->part = mx::fast::metal_kernel("kk_pages_part", kk_mlx_part_inputs, {"sums", "tops"},
                                     KK_TEXT(KK_MLX_PART_BODY) ";", text);
    k->join = mx::fast::metal_kernel("kk_pages_join", kk_mlx_join_inputs, {"out"},
                                     KK_TEXT(KK_MLX_JOIN_BODY) ";", text);
    k->shown = [dev] { return dev->arena.shown(); };
    k->base = dev->arena.base;
    k->bytes = dev->arena.bytes;
    return k;
}

/* ---- the self-test ------------------------------------------------------------------------- */

namespace {

/* A layer to attend to, with random rows of its own. */
struct sample {
    kk_kv_format format;
    bool k_is_v;
    int32_t kv_heads, heads, d, n_rot, window;
};

constexpr int ROWS = KK_MLX_ROUND_ROWS, FIRST = 560, PAGES = (FIRST + ROWS) / KK_PAGE_ROWS + 1;

/* Memory of pages, given back at the end. */
struct borrowed {
    kk_dev *dev;
    size_t bytes;
    uint8_t *at;
    borrowed(kk_dev *d, size_t n) : dev(d), bytes(n), at(d->arena.take(n)) {
        if (!at) throw std::bad_alloc();
    }
    borrowed(const borrowed &) = delete;
    borrowed &operator=(const borrowed &) = delete;
    ~borrowed() { dev->arena.give(at, bytes); }
};

/* splitmix64: the next of a sequence, in [-1, 1). */
float drawn(uint64_t &state) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return (float)((z ^ (z >> 31)) >> 40) / (float)(1 << 23) - 1.0f;
}

kk_buf drawn_buffer(size_t n, uint64_t &state) {
    kk_buf b;
    b.bytes = n * sizeof(float);
    b.host = std::shared_ptr<uint8_t>(new uint8_t[b.bytes], std::default_delete<uint8_t[]>());
    for (size_t i = 0; i < n; i++) {
        const float x = drawn(state);
        memcpy(b.host.get() + i * sizeof x, &x, sizeof x);
    }
    return b;
}

void fill_pages(const sample &of, uint8_t *const *pages, size_t blocks, uint64_t &state) {
    std::vector<float> row((size_t)of.d);
    for (int32_t page = 0; page < PAGES; page++)
        for (size_t b = 0; b < blocks; b++)
            for (int32_t r = 0; r < KK_PAGE_ROWS; r++) {
                for (float &x : row) x = drawn(state);
                kk_kv_format_get(of.format)->pack(
                    row.data(), of.d, pages[page] + b * kk_kv_head_bytes(of.format, of.d),
                    kk_kv_row_place(of.format, of.d, KK_PAGE_ROWS, r));
            }
}

bool same_bits(const mx::array &a, const mx::array &b) {
    return memcmp(a.data<float>(), b.data<float>(), a.nbytes()) == 0;
}

/* Sums in other orders are nearer than this, as a share of the largest. */
bool nearly(const mx::array &a, const mx::array &b) {
    const float *x = a.data<float>(), *y = b.data<float>();
    float most = 0, off = 0;
    for (size_t i = 0; i < a.size(); i++) {
        most = std::max(most, std::fabs(y[i]));
        if (!(std::fabs(x[i] - y[i]) <= off)) off = std::fabs(x[i] - y[i]);
    }
    return off <= 1e-4f * most;
}

/* Rows [0, n) together against each of them alone. */
bool alike(kk_dev *dev, kk_attend_args a, const kk_group &all, const mx::array &q,
           const std::vector<mx::array> &alone, int32_t n) {
    kk_group g = all;
    g.n_rows = n;
    const kk_rows rows = {&g, 1, n};
    a.rows = &rows;
    const mx::array part = mx::slice(q, {0, 0, 0}, {n, q.shape(1), q.shape(2)}, dev->stream);
    const mx::array y = kk_mlx_pages_attend(dev, &a, part);
    for (int32_t r = 0; r < n; r++) {
        const mx::array row = mx::contiguous(mx::slice(y, {r, 0}, {r + 1, y.shape(1)}, dev->stream),
                                             false, dev->stream);
        kk_mlx_compute({row});
        if (!same_bits(row, alone[(size_t)r])) return false;
    }
    return true;
}

int32_t alike_in(kk_dev *dev, const sample &of, int32_t most) {
    uint64_t state = (uint64_t)(of.d * 5 + of.format);
    const size_t head = kk_kv_head_bytes(of.format, of.d), heads = (size_t)of.kv_heads;
    const size_t blocks = heads * (of.k_is_v ? 1 : 2), page = blocks * head;
    const borrowed memory(dev, page * PAGES);
    uint8_t *pages[PAGES];
    for (int32_t i = 0; i < PAGES; i++) pages[i] = memory.at + page * (size_t)i;
    fill_pages(of, pages, blocks, state);
    const kk_buf norm = drawn_buffer((size_t)of.d, state);
    const kk_buf turns = drawn_buffer((size_t)PAGES * KK_PAGE_ROWS * 2 * (size_t)of.n_rot, state);
    kk_group g = {};
    kk_attend_args a = {};
    g.pos = FIRST;
    g.pages = pages;
    g.n_rows = ROWS;
    a.k_norm = of.k_is_v ? &norm : nullptr;
    a.rope_pos = of.k_is_v ? &turns : nullptr;
    a.n_rot = of.n_rot;
    a.n_head = of.heads;
    a.window = of.window;
    a.scale = 1.0f / std::sqrt((float)of.d);
    a.slot = {of.format, of.k_is_v, of.kv_heads, of.d, 0, of.k_is_v ? 0 : heads * head};
    const mx::array q = mx::random::normal({ROWS, of.heads, of.d}, mx::float32, 0, 1,
                                           mx::random::key((uint64_t)of.d), dev->stream);
    std::vector<mx::array> alone;
    for (int32_t r = 0; r < ROWS; r++) {
        kk_group one = g;
        one.pos = FIRST + r;
        one.n_rows = 1;
        const kk_rows rows = {&one, 1, 1};
        a.rows = &rows;
        const mx::array own = mx::slice(q, {r, 0, 0}, {r + 1, of.heads, of.d}, dev->stream);
        alone.push_back(kk_mlx_pages_attend(dev, &a, own));
        const mx::array plain = kk_mlx_plain_attend(dev, &a, own);
        kk_mlx_compute({alone.back(), plain});
        if (!nearly(alone.back(), plain)) return 0;
    }
    while (most > 1 && !alike(dev, a, g, q, alone, most)) most /= 2;
    return most;
}

} // namespace

int32_t kk_mlx_pages_alike(kk_dev *dev) {
    static const sample samples[] = {
        {KK_KV_BF16, false, 2, 4, 256, 128, 512}, {KK_KV_BF16, true, 2, 16, 512, 64, 0},
        {KK_KV_F32, false, 1, 3, 64, 32, 0},      {KK_KV_Q8, false, 1, 8, 128, 64, 100},
        {KK_KV_Q4, true, 1, 2, 64, 16, 0},        {KK_KV_S8, false, 2, 2, 256, 128, 300}};
    int32_t most = ROWS;
    for (const sample &of : samples)
        if (most > 0) most = alike_in(dev, of, most);
    dev->pages_done.reset();
    return most;
}
