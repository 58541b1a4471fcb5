/* cuda_gemm.cu - products for more than 16 rows: launches of the tiled kernel in gemm.cuh, and the
 * kernels around it for experts.  Where the chip has it, kk_hop_kernel (gemm_hopper.cuh) takes its
 * place.
 *
 *    experts: four launches without the host in between; a pair is a row and one of its experts
 *      group_kernel      1 block, 1024 threads: pairs listed by expert in tiles of up to 128 (176);
 *                        smem: two counters and a tile range per expert
 *      kk_gemm_kernel    gate and up of every tile  -> act [pairs][ffn] bf16, swizzled
 *      kk_gemm_kernel    down projection, each pair -> each [pairs][n_out] f32
 *      slots_kernel      out[row] = sum over its experts in the router's order, as decode.cuh */
#include "gemm_hopper.cuh"
#include "launch.cuh"

static int steps_of(const kk_cu_weight &w) { return w.wrap * w.planes; }
static size_t matrix_size(const kk_cu_weight &w) { /* of one matrix, in 16-byte words */
    return (size_t)w.strips * (size_t)steps_of(w) * (size_t)w.words;
}

/* The kernels of bf16 weights by experts and gated products. */
typedef void (*gemm_fn)(kk_gemm_args);
static const gemm_fn gemm_kernels[2][2] = {
    {kk_gemm_kernel<false, false>, kk_gemm_kernel<false, true>},
    {kk_gemm_kernel<true, false>, kk_gemm_kernel<true, true>}};

/* A launch of parts in one encoding.  hopper: by the kernel of gemm_hopper.cuh, whose tiles and
 * lists differ. */
static cudaError_t launch(kk_cu_at at, const kk_gemm_args &g, bool experts, int encoding,
                          bool hopper, int most) {
    bool few = false; /* steps: fewer than copies run ahead, which go on to no other tile */
    for (int i = 0; i < g.n_parts; i++) few = few || g.part[i].steps <= 2 * (KK_TILE_STAGES - 1);
    const bool all = few && !hopper && encoding == KK_W_BF16;
    const unsigned blocks = (unsigned)(most < at.sms || all ? most : at.sms);
    if (hopper) return kk_run_hop_gemm(at, g, experts, blocks);
    if (encoding != KK_W_BF16) return kk_run_packed_gemm(at, g, experts, encoding, blocks);
    return kk_launch(at, gemm_kernels[experts][g.part[0].up != NULL], g, blocks, KK_BLOCK_THREADS,
                     KK_TILE_SHARED);
}

/* ---- plain rows --------------------------------------------------------------------------- */

/* Chooses the number of tiles along the rows that minimises waves times the time of a tile, which
 * is about the 16-row fragments that it multiplies plus a few. */
static int row_tiles(int n_rows, int units, int sms, bool hopper) {
    const int pieces = (n_rows + 15) / 16, most = hopper ? (int)KK_HOP_PIECES : (int)KK_TILE_PIECES;
    const int front = hopper ? 1 : 8;
    int best = 0, cost = 0;
    for (int n = (pieces + most - 1) / most; n <= pieces; n++) {
        const int waves = (n * units + sms - 1) / sms, each = (pieces + n - 1) / n;
        const int c = waves * ((hopper ? kk_hop_size(each) : each) + front);
        if (best && c >= cost) continue;
        best = n;
        cost = c;
    }
    return best;
}

/* Adds a part to g; its strips and the size of its steps are those of w. */
static void add_part(kk_gemm_args *g, const kk_cu_linear *a, int i) {
    kk_gemm_part &p = g->part[g->n_parts++];
    const kk_cu_weight &w = a->part[i].w;
    p.w = (const uint4 *)w.data;
    p.up = (const uint4 *)a->part[i].up.data;
    p.out = a->part[i].out;
    p.n_out = (int)w.n_out;
    p.strips = w.strips;
    p.units = (w.strips + KK_TILE_STRIPS - 1) / KK_TILE_STRIPS;
    if (p.up) p.units = (w.strips + KK_TILE_STRIPS / 2 - 1) / (KK_TILE_STRIPS / 2);
    p.steps = steps_of(w);
    p.pitch = a->part[i].pitch;
    g->units += p.units;
}

/* The parts in one encoding, if there are any. */
static cudaError_t run_encoding(kk_cu_at at, const kk_cu_linear *a, int cuts, int encoding) {
    kk_gemm_args g = {};
    for (int i = 0; i < a->n_parts; i++) {
        if (a->part[i].w.encoding != encoding) continue;
        const kk_cu_weight &up = a->part[i].up;
        if (!a->part[0].up.data != !up.data || (up.data && up.encoding != encoding))
            return cudaErrorInvalidValue;
        add_part(&g, a, i);
    }
    if (!g.n_parts) return cudaSuccess;
    g.x = (const uint4 *)a->x;
    g.pitch = a->n_in / 8;
    g.wrap = a->n_in / KK_STEP;
    g.n_rows = a->n_rows;
    g.cuts = cuts;
    const bool hopper = encoding == KK_W_BF16 && kk_hop_takes(at);
    g.tiles = row_tiles(a->n_rows, g.units * cuts, at.sms, hopper);
    g.silu = a->silu;
    g.per_row = 1;
    return launch(at, g, false, encoding, hopper, g.tiles * g.units * cuts);
}

static cudaError_t run_gemm(kk_cu_at at, const kk_cu_linear *a, int cuts) {
    cudaError_t e = cudaSuccess;
    for (int w = 0; w < KK_W_ENCODINGS && e == cudaSuccess; w++) e = run_encoding(at, a, cuts, w);
    return e;
}

cudaError_t kk_cu_run_gemm(kk_cu_at at, const kk_cu_linear *a) { return run_gemm(at, a, 1); }

cudaError_t kk_cu_run_cut_gemm(kk_cu_at at, const kk_cu_linear *a, int32_t *slices) {
    *slices = kk_slices(steps_of(a->part[0].w));
    return run_gemm(at, a, *slices);
}

/* ---- experts ------------------------------------------------------------------------------ */

enum { GROUP_THREADS = 1024, GROUP_EACH = 32 /* pairs of a thread, at most */ };

/* Layout of kk_cu_experts' scratch: the number of tiles, then tiles, then their row lists. */
struct group_args {
    const int *expert; /* expert of each pair */
    int *n_tiles;
    int2 *tile;
    int *slot;
    int pairs, n_expert;
    int list; /* most rows of a tile */
};

static int most_tiles(int pairs, int n_expert, int list) {
    return pairs / list + (n_expert < pairs ? n_expert : pairs);
}
static size_t lists_bytes(int pairs, int n_expert, int list) {
    const size_t tiles = (size_t)most_tiles(pairs, n_expert, list);
    return 16 + tiles * sizeof(int2) + tiles * (size_t)list * sizeof(int);
}

/* The tiles of an expert: its 16-row fragments divided evenly, the first tiles one more. */
struct expert_tiles {
    int first, tiles, pieces; /* first: index among all tiles */

    __device__ __forceinline__ int begin(int t) const { /* first fragment of tile t */
        return t * (pieces / tiles) + min(t, pieces % tiles);
    }
    __device__ __forceinline__ int of(int piece) const {
        const int least = pieces / tiles, more = pieces % tiles, in_more = more * (least + 1);
        return piece < in_more ? piece / (least + 1) : more + (piece - in_more) / least;
    }
};

/* Lists pairs by expert.  MOST: compile-time bound of the number of experts.  A pair's number among
 * those of its expert is what the count was before it; both stay in a register. */
template <int MOST>
__global__ void __launch_bounds__(GROUP_THREADS, 1)
    group_kernel(const __grid_constant__ group_args a) {
    __shared__ int count[MOST], before[MOST];
    __shared__ expert_tiles of[MOST];
    const int tid = (int)threadIdx.x;
    int kept[GROUP_EACH]; /* expert + 1024 * number, or -1 */
    if (tid < MOST) count[tid] = 0;
    __syncthreads();
    kk_wait();
    kk_next();
#pragma unroll
    for (int i = 0; i < GROUP_EACH; i++) {
        const int pair = i * GROUP_THREADS + tid;
        kept[i] = pair < a.pairs ? a.expert[pair] : -1;
    }
#pragma unroll
    for (int i = 0; i < GROUP_EACH; i++) {
        const bool known = (unsigned)kept[i] < (unsigned)a.n_expert;
        kept[i] = known ? kept[i] + 1024 * atomicAdd(&count[kept[i]], 1) : -1;
    }
    __syncthreads();
    int pieces = 0, tiles = 0, sum = 0;
    if (tid < MOST) {
        pieces = (count[tid] + 15) / 16;
        tiles = sum = (16 * pieces + a.list - 1) / a.list;
        before[tid] = sum;
    }
    __syncthreads();
    for (int d = 1; d < MOST; d *= 2) {
        if (tid >= d && tid < MOST) sum += before[tid - d];
        __syncthreads();
        if (tid < MOST) before[tid] = sum;
        __syncthreads();
    }
    if (tiles > 0) {
        const expert_tiles e = {sum - tiles, tiles, pieces};
        of[tid] = e;
        for (int t = 0; t < tiles; t++)
            a.tile[e.first + t] = make_int2(tid, e.begin(t + 1) - e.begin(t));
    }
    const int all = before[MOST - 1];
    if (tid == 0) *a.n_tiles = all;
    for (int i = tid; i < all * a.list / 2; i += GROUP_THREADS) /* they are read to their ends */
        ((int2 *)a.slot)[i] = make_int2(-1, -1);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < GROUP_EACH; i++) {
        if (kept[i] < 0) continue;
        const expert_tiles e = of[kept[i] % 1024];
        const int nth = kept[i] / 1024, t = e.of(nth / 16);
        a.slot[(size_t)(e.first + t) * (size_t)a.list + (nth - e.begin(t) * 16)] =
            i * GROUP_THREADS + tid;
    }
}

struct slots_args {
    float *out;
    const float *each, *weight; /* [n_rows][n_used][n_out]; [n_rows][n_used] */
    int n_rows, n_used, n_out;
};

/* out[r] = sum over a row's experts, in the router's order, of weight * each. */
__global__ void __launch_bounds__(KK_BLOCK_THREADS)
    slots_kernel(const __grid_constant__ slots_args a) {
    const size_t r = blockIdx.y, width = (size_t)a.n_out;
    const float *from = a.each + r * (size_t)a.n_used * width;
    const int o = 4 * ((int)blockIdx.x * KK_BLOCK_THREADS + (int)threadIdx.x);
    kk_wait();
    kk_next();
    if (o >= a.n_out) return;
    if (a.n_out % 4 == 0) {
        float4 s = make_float4(0, 0, 0, 0);
        for (int k = 0; k < a.n_used; k++) {
            const float w = a.weight[r * (size_t)a.n_used + k];
            const float4 v = *(const float4 *)(from + k * width + o);
            s.x = __fmaf_rn(w, v.x, s.x);
            s.y = __fmaf_rn(w, v.y, s.y);
            s.z = __fmaf_rn(w, v.z, s.z);
            s.w = __fmaf_rn(w, v.w, s.w);
        }
        *(float4 *)(a.out + r * width + o) = s;
        return;
    }
    for (int i = o; i < min(o + 4, a.n_out); i++) {
        float s = 0;
        for (int k = 0; k < a.n_used; k++)
            s = __fmaf_rn(a.weight[r * (size_t)a.n_used + k], from[k * width + i], s);
        a.out[r * width + i] = s;
    }
}

bool kk_cu_experts_tiled(const kk_cu_weight *gate, const kk_cu_weight *up, int32_t ffn) {
    return up->data ? up->planes == gate->planes && up->encoding == gate->encoding : ffn % 8 == 0;
}

size_t kk_cu_experts_scratch(int32_t pairs, int32_t n_expert) {
    const size_t plain = lists_bytes(pairs, n_expert, KK_TILE_ROWS);
    const size_t hopper = lists_bytes(pairs, n_expert, KK_HOP_ROWS);
    return plain > hopper ? plain : hopper;
}

/* Launches one of the experts' products over the listed pairs. */
static cudaError_t run_tiles(kk_cu_at at, kk_gemm_args g, const group_args &l, int per_row,
                             int encoding) {
    g.n_parts = 1;
    g.units = g.part[0].units;
    g.n_rows = l.pairs;
    g.cuts = 1;
    g.tile = l.tile;
    g.slot = l.slot;
    g.list = l.list;
    g.n_tiles = l.n_tiles;
    g.per_row = per_row;
    const int most = most_tiles(l.pairs, l.n_expert, l.list) * g.units;
    return launch(at, g, true, encoding, l.list == KK_HOP_ROWS, most);
}

static cudaError_t run_gates(kk_cu_at at, const kk_cu_experts *a, const group_args &l) {
    kk_gemm_args g = {};
    kk_gemm_part &p = g.part[0];
    p.w = (const uint4 *)a->gate.data;
    p.steps = steps_of(a->gate);
    p.mat = p.up_mat = matrix_size(a->gate);
    p.strips = (a->ffn + 7) / 8;
    p.up = p.w + (size_t)p.strips * (size_t)p.steps * (size_t)a->gate.words;
    if (a->up.data) {
        p.up = (const uint4 *)a->up.data;
        p.up_mat = matrix_size(a->up);
    }
    p.out = a->act;
    p.n_out = a->ffn;
    p.units = (p.strips + KK_TILE_STRIPS / 2 - 1) / (KK_TILE_STRIPS / 2);
    p.pitch = a->act_pitch;
    g.x = (const uint4 *)a->x;
    g.wrap = a->gate.wrap;
    g.pitch = g.wrap * 4;
    return run_tiles(at, g, l, a->choice.n_used, a->gate.encoding);
}

static cudaError_t run_downs(kk_cu_at at, const kk_cu_experts *a, const group_args &l) {
    kk_gemm_args g = {};
    kk_gemm_part &p = g.part[0];
    p.w = (const uint4 *)a->down.data;
    p.steps = steps_of(a->down);
    p.mat = matrix_size(a->down);
    p.strips = a->down.strips;
    p.out = a->each;
    p.n_out = (int)a->down.n_out;
    p.units = (p.strips + KK_TILE_STRIPS - 1) / KK_TILE_STRIPS;
    p.pitch = (int)a->down.n_out;
    g.x = (const uint4 *)a->act;
    g.wrap = a->down.wrap;
    g.pitch = a->act_pitch / 8;
    return run_tiles(at, g, l, 1, a->down.encoding);
}

cudaError_t kk_cu_run_experts(kk_cu_at at, const kk_cu_experts *a) {
    const kk_cu_choice *c = &a->choice;
    if (c->logits || c->n_expert > KK_MOST_EXPERTS ||
        c->n_rows > GROUP_THREADS * GROUP_EACH / c->n_used ||
        !kk_cu_experts_tiled(&a->gate, &a->up, a->ffn))
        return cudaErrorInvalidValue;
    group_args l = {};
    l.expert = c->expert;
    l.pairs = c->n_rows * c->n_used;
    l.n_expert = c->n_expert;
    const bool bf16 = a->gate.encoding == KK_W_BF16 && a->down.encoding == KK_W_BF16;
    l.list = bf16 && kk_hop_takes(at) ? (int)KK_HOP_ROWS : (int)KK_TILE_ROWS;
    l.n_tiles = (int *)a->scratch;
    l.tile = (int2 *)((char *)a->scratch + 16);
    l.slot = (int *)(l.tile + most_tiles(l.pairs, l.n_expert, l.list));
    cudaError_t e = kk_launch(at,
                              c->n_expert <= KK_MAX_EXPERTS ? group_kernel<KK_MAX_EXPERTS>
                                                            : group_kernel<KK_MOST_EXPERTS>,
                              l, 1, GROUP_THREADS, 0);
    if (e == cudaSuccess) e = run_gates(at, a, l);
    if (e == cudaSuccess) e = run_downs(at, a, l);
    if (e != cudaSuccess) return e;
    slots_args s = {};
    s.out = a->out;
    s.each = a->each;
    s.weight = c->weight;
    s.n_rows = c->n_rows;
    s.n_used = c->n_used;
    s.n_out = (int)a->down.n_out;
    const unsigned wide = (unsigned)((s.n_out + 4 * KK_BLOCK_THREADS - 1) / (4 * KK_BLOCK_THREADS));
    return kk_launch(at, slots_kernel, s, dim3(wide, (unsigned)c->n_rows), KK_BLOCK_THREADS, 0);
}

cudaError_t kk_cu_setup_gemm(void) {
    for (const auto &experts : gemm_kernels)
        for (const gemm_fn fn : experts) {
            const cudaError_t e = cudaFuncSetAttribute(
                (const void *)fn, cudaFuncAttributeMaxDynamicSharedMemorySize, KK_TILE_SHARED);
            if (e != cudaSuccess) return e;
        }
    const cudaError_t e = kk_setup_hop_gemm();
    return e != cudaSuccess ? e : kk_setup_packed_gemm();
}
