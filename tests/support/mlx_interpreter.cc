/* mlx_interpreter.cc - see mlx_interpreter.h.
 *
 * What Metal has and C++ has not is made here: names of address spaces, which mean nothing, and a
 * sum over the lanes of a SIMD group.  A lane is a coroutine of its own; it stops where it adds to
 * a sum, until the others have come as far.  Groups run one after the other, so no lane sees what
 * another group has not written, and results that depend on such an order are not found here. */
#include "support/mlx_interpreter.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include <ucontext.h>

#include "backend/mlx/mlx_host.h"
#include "backend/mlx/mlx_pages.h"

/* ---- lanes --------------------------------------------------------------------------------- */

namespace {

enum { LANES = 32, STACK = 64 << 10, WIDTH = 4 };

/* One SIMD group.  Lanes pass through sums together: the n-th sum of one is the n-th of all. */
struct simd_group {
    ucontext_t back, lane[LANES];
    std::vector<char> stack = std::vector<char>((size_t)LANES * STACK);
    std::function<void(unsigned)> run;
    float part[2][LANES][WIDTH]; /* of this sum and the one before, which some have yet to read */
    int now = 0;
    unsigned sums[LANES]; /* that each lane has begun */
    bool done[LANES];
};

thread_local simd_group *group;

void begin_lane() {
    group->run((unsigned)group->now);
    group->done[group->now] = true;
    swapcontext(&group->lane[group->now], &group->back);
}

/* Runs all lanes up to their next sum, or to their end. */
void run_group(simd_group &g, const std::function<void(unsigned)> &run) {
    group = &g;
    g.run = run;
    for (int l = 0; l < LANES; l++) {
        g.done[l] = false;
        g.sums[l] = 0;
        getcontext(&g.lane[l]);
        g.lane[l].uc_stack.ss_sp = g.stack.data() + (size_t)l * STACK;
        g.lane[l].uc_stack.ss_size = STACK;
        g.lane[l].uc_link = nullptr;
        makecontext(&g.lane[l], begin_lane, 0);
    }
    for (;;) {
        int ended = 0;
        for (g.now = 0; g.now < LANES; g.now++) {
            swapcontext(&g.back, &g.lane[g.now]);
            ended += g.done[g.now];
        }
        if (ended == LANES) return;
        if (ended) throw std::runtime_error("some lanes came to a sum and others did not");
    }
}

} // namespace

/* ---- what Metal calls things --------------------------------------------------------------- */

namespace metal_text {

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using std::exp, std::fma, std::max;

struct uint3 {
    uint x, y, z;
};

struct half {
    uint16_t bits;
    explicit operator float() const { return kk_f16_f32(bits); }
};

struct float4 {
    float v[WIDTH];
    explicit float4(float all) : v{all, all, all, all} {}
    float &operator[](int i) { return v[i]; }
    float operator[](int i) const { return v[i]; }
};
float4 operator*(float4 a, float by) {
    for (float &x : a.v) x *= by;
    return a;
}

template <typename To, typename From> To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

float4 simd_sum(float4 mine) {
    simd_group *g = group;
    const unsigned turn = g->sums[g->now]++ % 2;
    memcpy(g->part[turn][g->now], mine.v, sizeof mine.v);
    swapcontext(&g->lane[g->now], &g->back); /* until all others have come as far */
    float4 sum(0);
    for (const auto &part : g->part[turn])
        for (int i = 0; i < WIDTH; i++) sum[i] += part[i];
    return sum;
}

#define device
#define thread
#include "backend/mlx/mlx_pages.metal"
#undef device
#undef thread

} // namespace metal_text

/* ---- kernels ------------------------------------------------------------------------------- */

namespace {

/* What the places of pages are counted from: any address will do. */
uint8_t origin[16];
std::atomic<int64_t> calls;

using arrays = std::vector<mx::array>;
using templates = std::vector<std::pair<std::string, mx::fast::TemplateArg>>;

/* Data of inputs and outputs by the names that the bodies call them by. */
struct named {
    const std::vector<std::string> &names;
    const std::vector<const void *> &in;
    template <typename T> const T *get(const char *name) const {
        for (size_t i = 0; i < names.size(); i++)
            if (names[i] == name) return static_cast<const T *>(in[i]);
        throw std::runtime_error(std::string("no input is called ") + name);
    }
};

struct grid {
    int x, y, z;
};

template <int D, int FORMAT, bool K_IS_V>
void run_part(const named &n, const std::vector<void *> &out, grid size) {
    using namespace metal_text;
    const auto *q = n.get<float>("q");
    const uint8_t *pages = origin;
    const auto *blocks = n.get<int64_t>("blocks");
    const auto *parts = n.get<int>("parts");
    const auto *sizes = n.get<int>("sizes");
    const auto *k_norm = n.get<float>("k_norm");
    const auto *angles = n.get<float>("angles");
    auto *sums = static_cast<float *>(out[0]), *tops = static_cast<float *>(out[1]);
    simd_group lanes;
    for (int z = 0; z < size.z; z++)
        for (int y = 0; y < size.y; y++)
            run_group(lanes, [&](unsigned lane) {
                const uint3 thread_position_in_grid = {lane, (uint)y, (uint)z};
                KK_MLX_PART_BODY;
            });
}

template <int D> void run_join(const named &n, const std::vector<void *> &to, grid size) {
    using namespace metal_text;
    const auto *sums = n.get<float>("sums"), *tops = n.get<float>("tops");
    const auto *rows = n.get<int>("rows"), *sizes = n.get<int>("sizes");
    auto *out = static_cast<float *>(to[0]);
    for (int z = 0; z < size.z; z++)
        for (int y = 0; y < size.y; y++)
            for (int x = 0; x < size.x; x++) {
                const uint3 thread_position_in_grid = {(uint)x, (uint)y, (uint)z};
                KK_MLX_JOIN_BODY;
            }
}

using part_fn = void (*)(const named &, const std::vector<void *> &, grid);
using join_fn = void (*)(const named &, const std::vector<void *> &, grid);

template <int D, bool K_IS_V> part_fn part_of(int format) {
    static const part_fn of[] = {run_part<D, 0, K_IS_V>, run_part<D, 1, K_IS_V>,
                                 run_part<D, 2, K_IS_V>, run_part<D, 3, K_IS_V>,
                                 run_part<D, 4, K_IS_V>};
    return of[format];
}

struct width {
    int d;
    part_fn (*part)(int format);
    part_fn (*part_k_is_v)(int format);
    join_fn join;
};
template <int D> width width_of() { return {D, part_of<D, false>, part_of<D, true>, run_join<D>}; }
const width widths[] = {width_of<16>(),  width_of<24>(),  width_of<32>(), width_of<64>(),
                        width_of<128>(), width_of<256>(), width_of<512>()};

int number(const templates &t, const char *name) {
    for (const auto &arg : t) {
        if (arg.first != name) continue;
        if (std::holds_alternative<bool>(arg.second)) return std::get<bool>(arg.second);
        return std::get<int>(arg.second);
    }
    throw std::runtime_error(std::string("no template argument is called ") + name);
}

const width &width_named(const templates &t) {
    for (const width &w : widths)
        if (w.d == number(t, "D")) return w;
    throw std::runtime_error("no such width is compiled");
}

std::vector<kk_mlx_out> outputs(const std::vector<mx::Shape> &shapes) {
    std::vector<kk_mlx_out> out;
    for (const mx::Shape &s : shapes) out.push_back({s, mx::float32});
    return out;
}

grid size_of(const std::tuple<int, int, int> &g) {
    return {std::get<0>(g), std::get<1>(g), std::get<2>(g)};
}

/* As MLX refuses them: threads of a group that exceed the grid or what a group may have. */
void check_group(grid all, grid one) {
    if (one.x > all.x || one.y > all.y || one.z > all.z || one.x * one.y * one.z > 1024)
        throw std::runtime_error("no such group of threads");
}

/* Inputs of fewer than eight values come by another kind of pointer, in Metal: of those that the
 * body reads, none may. */
void check_inputs(const arrays &in, const std::vector<std::string> &names) {
    if (in.size() != names.size()) throw std::runtime_error("inputs without names");
    for (size_t i = 0; i < in.size(); i++)
        if (in[i].size() < 8 && names[i] != "order")
            throw std::runtime_error("too few values of " + names[i]);
}

std::vector<mx::array> interpret_part(kk_dev *dev, int spoilt, const arrays &in,
                                      const std::vector<mx::Shape> &shapes, grid size,
                                      const templates &t) {
    check_inputs(in, kk_mlx_part_inputs);
    const width &w = width_named(t);
    const int format = number(t, "FORMAT");
    const part_fn fn = number(t, "K_IS_V") ? w.part_k_is_v(format) : w.part(format);
    calls++;
    return kk_mlx_host(
        dev, in, outputs(shapes),
        [fn, size, spoilt](const std::vector<const void *> &data, const std::vector<void *> &out) {
            const named n = {kk_mlx_part_inputs, data};
            fn(n, out, size);
            if (size.z > spoilt) static_cast<float *>(out[0])[3] *= 1.01f;
        });
}

std::vector<mx::array> interpret_join(kk_dev *dev, const arrays &in,
                                      const std::vector<mx::Shape> &shapes, grid size,
                                      const templates &t) {
    check_inputs(in, kk_mlx_join_inputs);
    return kk_mlx_host(dev, in, outputs(shapes),
                       [fn = width_named(t).join, size](const std::vector<const void *> &data,
                                                        const std::vector<void *> &out) {
                           fn({kk_mlx_join_inputs, data}, out, size);
                       });
}

std::shared_ptr<kk_mlx_kernels> interpreted(kk_dev *dev, int spoilt) {
    auto k = std::make_shared<kk_mlx_kernels>();
    const auto call = [](auto &&f) {
        return [f](const arrays &in, const std::vector<mx::Shape> &shapes,
                   const std::vector<mx::Dtype> &, std::tuple<int, int, int> all,
                   std::tuple<int, int, int> one, const templates &t, std::optional<float>, bool,
                   mx::StreamOrDevice) {
            check_group(size_of(all), size_of(one));
            return f(in, shapes, size_of(all), t);
        };
    };
    k->part = call([dev, spoilt](const arrays &in, const std::vector<mx::Shape> &shapes, grid size,
                                 const templates &t) {
        return interpret_part(dev, spoilt, in, shapes, size, t);
    });
    k->join = call([dev](const arrays &in, const std::vector<mx::Shape> &shapes, grid size,
                         const templates &t) { return interpret_join(dev, in, shapes, size, t); });
    k->shown = [] { return mx::zeros({16384}, mx::uint8, mx::Device::cpu); };
    k->base = origin;
    k->bytes = SIZE_MAX;
    return k;
}

/* ---- devices ------------------------------------------------------------------------------- */

kk_backend by_pages;
extern "C" const kk_backend *kk_mlx_module(size_t bytes);

kk_status open_with(kk_dev **out, const kk_dev_opts *opts, int spoilt, kk_err *err) {
    KK_TRY(kk_mlx_module(sizeof(kk_backend))->open(out, opts, err));
    (*out)->kernels = interpreted(*out, spoilt);
    (*out)->page_rows = KK_MLX_ROUND_ROWS;
    return KK_OK;
}
kk_status open_pages(kk_dev **out, const kk_dev_opts *opts, kk_err *err) {
    return open_with(out, opts, INT32_MAX, err);
}

} // namespace

void mlx_interpreter_add(void) {
    by_pages = *kk_mlx_module(sizeof(kk_backend));
    by_pages.name = "mlx-pages";
    by_pages.open = open_pages;
    kk_backend_add(&by_pages);
}

int64_t mlx_interpreter_calls(void) { return calls; }

kk_status mlx_interpreter_measure_broken(kk_exact_rows *out, kk_err *pages, kk_err *err) {
    kk_mem mem = {};
    kk_dev_opts opts = {};
    kk_dev *dev = nullptr;
    opts.mem = &mem;
    opts.max_rows = 1;
    KK_TRY(open_with(&dev, &opts, INT32_MAX, err));
    dev->kernels->shown = []() -> mx::array { throw std::runtime_error("error: no such type"); };
    const kk_status st = by_pages.instruments->measure_exact(dev, out, pages, err);
    by_pages.close(dev);
    return st;
}

kk_status mlx_interpreter_alike(int32_t spoilt, int32_t *rows, kk_err *err) {
    kk_mem mem = {};
    kk_dev_opts opts = {};
    kk_dev *dev = nullptr;
    opts.mem = &mem;
    opts.max_rows = 1;
    KK_TRY(open_with(&dev, &opts, spoilt, err));
    const kk_status st = kk_mlx_try(err, "the self-test", [&] {
        *rows = kk_mlx_pages_alike(dev);
        return KK_OK;
    });
    by_pages.close(dev);
    return st;
}
