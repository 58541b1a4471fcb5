/* decode.cuh - the weight-streaming kernels for 1 to 16 rows: plain products, gated products, and
 * the experts' two products.
 *
 *    every kernel: 256 threads, one block per multiprocessor, stream.cuh's warp rings (96 KB, or
 *    32 KB where blocks have less shared memory: SMALL)
 *      1  fetch the first weights                           (before griddepcontrol.wait)
 *      2  kk_wait: the kernel before has finished; kk_next: the next may start
 *      3  stage activations [rows][n_in] bf16 in shared memory; experts: top-k from the logits
 *      4  for each unit: 8 warps multiply a K slice each -> partial sums in smem -- __syncthreads
 *         one warp, in rotation, adds the slices in order, applies act(gate) * up, stores
 *    kk_linear_kernel  unit: one strip of 8 outputs, two strips, or a gate and an up strip
 *    kk_gate_kernel    unit: one expert's gate and up strip; rows by expert from kk_choice
 *    kk_down_kernel    unit: a strip of all active experts, one expert per warp at a time, all of
 *                      K in order; smem [2][pairs][8] f32, then a weighted sum over row slots
 *
 * Blocks are small enough for two per multiprocessor, so that the next kernel's block can fetch its
 * first weights while this one ends; those of plain products of bf16 weights are made larger than
 * that (cuda_linear.cu), since two of them may come to lie on one.  A pair is a row and one of its
 * experts. */
#ifndef KK_CUDA_DECODE_CUH
#define KK_CUDA_DECODE_CUH

#include "choose.cuh"

enum { KK_MAX_PARTS = 4 };

/* One matrix of a launch: rows of f32 sums; or, of a gate and an up matrix, rows of bf16
 * activations. */
struct kk_part {
    const uint4 *w, *up; /* up not NULL: out = act(w x) * (up x), as bf16 */
    void *out;
    int n_out, units, steps; /* units: strips, or pairs of two strips */
    int pitch;               /* values from one row of out to the next */
    int encoding, words;     /* of a K step of a strip */
};

struct kk_linear_job_args {
    kk_part part[KK_MAX_PARTS];
    int n_parts, units;
    const uint16_t *x; /* [n_rows][n_in] */
    int n_rows, n_in, silu;
    bool early; /* the next kernel may start before this one's griddepcontrol.wait */
};

/* NS 2: a unit is a gate strip and an up strip, or two neighbouring strips of a plain matrix. */
template <bool HIGH, int NS> struct kk_linear_job {
    const kk_linear_job_args &a;
    char *stage;

    __device__ kk_linear_job(const kk_linear_job_args &args, char *smem) : a(args), stage(smem) {}
    struct at {
        int unit, left, part; /* unit: over all matrices; left: within matrix `part` */
    };
    __device__ __forceinline__ void settle(at &p) const {
        while (p.part < a.n_parts && p.left >= a.part[p.part].units)
            p.left -= a.part[p.part++].units;
    }
    __device__ __forceinline__ at first() const {
        at p = {(int)blockIdx.x, (int)blockIdx.x, 0};
        settle(p);
        return p;
    }
    __device__ __forceinline__ void next(at &p) const {
        p.unit += (int)gridDim.x;
        p.left += (int)gridDim.x;
        settle(p);
    }
    __device__ __forceinline__ bool done(const at &p) const { return p.unit >= a.units; }
    __device__ __forceinline__ bool known(const at &) const { return true; }
    __device__ __forceinline__ kk_staged acts(const at &) const {
        return kk_staged{stage, kk_stage_stride(a.n_in), a.n_in / KK_STEP};
    }
    __device__ __forceinline__ int steps(const at &p) const { return a.part[p.part].steps; }
    __device__ __forceinline__ const uint4 *strip(const at &p, int i) const {
        const kk_part &m = a.part[p.part];
        const bool pair = NS > 1 && !m.up;
        const uint4 *w = i && m.up ? m.up : m.w;
        return w + (size_t)(pair ? 2 * p.left + i : p.left) * m.steps * m.words;
    }
    __device__ __forceinline__ int encoding(const at &p) const { return a.part[p.part].encoding; }
    __device__ __forceinline__ int row(const at &, int i) const { return i < a.n_rows ? i : 0; }
    __device__ __forceinline__ void ready() {
        if (a.early) kk_next();
        kk_wait();
        if (!a.early) kk_next();
        kk_stage(stage, a.x, a.n_rows, a.n_in);
        __syncthreads();
    }
    __device__ __forceinline__ void sums(const at &p, const float *part, int lane) const {
        const kk_part &m = a.part[p.part];
        for (int i = lane; i < a.n_rows * 8; i += KK_WARP) {
            const int r = i / 8;
            float v[NS];
#pragma unroll
            for (int s = 0; s < NS; s++) v[s] = kk_slices_sum<HIGH>(part, s, i);
            if (NS > 1 && m.up) {
                const int o = p.left * 8 + i % 8;
                if (o < m.n_out)
                    ((uint16_t *)m.out)[(size_t)r * m.pitch + o] =
                        kk_dbf16(kk_glu_of(v[0], v[NS - 1], a.silu));
                continue;
            }
#pragma unroll
            for (int s = 0; s < NS; s++) {
                const int o = (p.left * NS + s) * 8 + i % 8;
                if (o < m.n_out) ((float *)m.out)[(size_t)r * m.pitch + o] = v[s];
            }
        }
    }
};

template <bool HIGH, int NS, bool SMALL, bool PACKED>
__global__ void __launch_bounds__(KK_BLOCK_THREADS, 2)
    kk_linear_kernel(const __grid_constant__ kk_linear_job_args a) {
    extern __shared__ __align__(128) char smem[];
    kk_ring<SMALL> ring;
    ring.open(smem);
    float *part = (float *)(smem + kk_ring_cut<SMALL>::ALL);
    kk_linear_job<HIGH, NS> job(a, (char *)(part + kk_part_floats(HIGH)));
    kk_stream<HIGH, NS, SMALL, PACKED>(job, part, ring);
}

/* ---- experts ------------------------------------------------------------------------------ */

/* act[pair][ffn] = gelu(gate_e x) * (up_e x). */
struct kk_gate_args {
    kk_choice_args choice;
    const uint4 *gate, *up;
    size_t gate_mat, up_mat; /* 16-byte words from one expert's matrix to the next */
    int strips, steps;       /* strips of the ffn outputs, K steps of the hidden inputs */
    int encoding, words;
    uint16_t *act; /* [pairs][act_pitch] */
    int ffn, act_pitch;
    const uint16_t *x; /* [n_rows][n_in] */
    int n_in;
};

template <bool HIGH> struct kk_gate_job {
    const kk_gate_args &a;
    kk_choice *c;
    char *stage;

    __device__ kk_gate_job(const kk_gate_args &args, kk_choice *choice, char *smem)
        : a(args), c(choice), stage(smem) {}
    struct at {
        int k, strip; /* index of the active expert, and its strip */
    };
    __device__ __forceinline__ void settle(at &p) const {
        while (p.strip >= a.strips) {
            p.strip -= a.strips;
            p.k++;
        }
    }
    __device__ __forceinline__ at first() const {
        at p = {0, (int)blockIdx.x};
        settle(p);
        return p;
    }
    __device__ __forceinline__ void next(at &p) const {
        p.strip += (int)gridDim.x;
        settle(p);
    }
    __device__ __forceinline__ bool known(const at &) const { return false; }
    __device__ __forceinline__ bool done(const at &p) const { return p.k >= c->n_active; }
    __device__ __forceinline__ int steps(const at &) const { return a.steps; }
    __device__ __forceinline__ const uint4 *strip(const at &p, int i) const {
        const size_t e = (size_t)c->active[p.k];
        return (i ? a.up + e * a.up_mat : a.gate + e * a.gate_mat) +
               (size_t)p.strip * a.steps * a.words;
    }
    __device__ __forceinline__ int encoding(const at &) const { return a.encoding; }
    __device__ __forceinline__ kk_staged acts(const at &) const {
        return kk_staged{stage, kk_stage_stride(a.n_in), a.n_in / KK_STEP};
    }
    __device__ __forceinline__ int row(const at &p, int i) const {
        const int at = c->first[p.k] + i;
        return c->pair_row[at < c->first[p.k + 1] ? at : at - i];
    }
    __device__ __forceinline__ void ready() {
        kk_wait();
        kk_next();
        kk_stage(stage, a.x, a.choice.n_rows, a.n_in);
        kk_make_choice<KK_BLOCK_THREADS>(c, a.choice,
                                         blockIdx.x == 0); /* ends with __syncthreads */
    }
    __device__ __forceinline__ void sums(const at &p, const float *part, int lane) const {
        const int from = c->first[p.k], n = c->first[p.k + 1] - from;
        for (int i = lane; i < n * 8; i += KK_WARP) {
            const int o = p.strip * 8 + i % 8;
            if (o >= a.ffn) continue;
            const float y =
                kk_glu_of(kk_slices_sum<HIGH>(part, 0, i), kk_slices_sum<HIGH>(part, 1, i), 0);
            a.act[(size_t)c->pair[from + i / 8] * a.act_pitch + o] = kk_dbf16(y);
        }
    }
};

template <bool HIGH, bool SMALL, bool PACKED>
__global__ void __launch_bounds__(KK_BLOCK_THREADS, 2)
    kk_gate_kernel(const __grid_constant__ kk_gate_args a) {
    extern __shared__ __align__(128) char smem[];
    __shared__ kk_choice choice;
    kk_ring<SMALL> ring;
    ring.open(smem);
    float *part = (float *)(smem + kk_ring_cut<SMALL>::ALL);
    if (threadIdx.x == 0)
        choice.n_active = 1; /* until the experts are known: first() must not be the end */
    __syncthreads();
    kk_gate_job<HIGH> job(a, &choice, (char *)(part + kk_part_floats(HIGH)));
    kk_stream<HIGH, 2, SMALL, PACKED>(job, part, ring);
}

/* out[r] = sum over the row's expert slots, in order, of weight * (down_e act). A block computes a
 * strip of outputs for all experts, a warp one expert at a time, its K slices in order. */
struct kk_down_args {
    kk_choice_args choice;
    const uint4 *down;
    int strips, steps,
        wrap; /* of one expert's matrix; wrap: K steps after which activations repeat */
    int encoding, words;
    const uint16_t *act; /* [pairs][act_pitch] */
    int act_pitch;
    float *out; /* [n_rows][n_out] */
    int n_out;
    bool staged; /* activations are staged in shared memory */
};

/* out = the sum over a row's expert slots, in order, of weight * that expert's result: `each` is
 * [pairs][8]. */
__device__ __forceinline__ void kk_down_sum(const kk_down_args &a, const kk_choice &choice,
                                            int strip, const float *each) {
    for (int i = (int)threadIdx.x; i < a.choice.n_rows * 8; i += KK_BLOCK_THREADS) {
        const int r = i / 8, o = strip * 8 + i % 8;
        float s = 0;
        for (int k = 0; k < a.choice.n_used; k++) {
            const int p = r * a.choice.n_used + k;
            s = __fmaf_rn(choice.weight[p], each[p * 8 + i % 8], s);
        }
        if (o < a.n_out) a.out[(size_t)r * a.n_out + o] = s;
    }
}

/* Steps [from, end) of packed weights, whose slots hold `most` steps each.  lo, hi: activations of
 * rows g and g + 8 at step 0; refill: starts the next copy. */
template <bool HIGH, bool SMALL, class F>
__device__ __forceinline__ void kk_down_packed(float c[1][4], kk_ring<SMALL> &ring, int encoding,
                                               int most, const uint16_t *lo, const uint16_t *hi,
                                               int from, int end, F refill) {
    for (; from < end; from += most) {
        const uint32_t slot = kk_shared(ring.wait() - threadIdx.x % KK_WARP);
        kk_with_packing(encoding, [&](auto p) {
            kk_packed_slot<decltype(p)::ENCODING, HIGH, 1>(c, slot, 0, min(most, end - from),
                                                           (const char *)(lo + from * 32),
                                                           (const char *)(hi + from * 32));
        });
        ring.release();
        refill();
    }
}

template <bool HIGH, bool SMALL, bool PACKED>
__global__ void __launch_bounds__(KK_BLOCK_THREADS, HIGH && !PACKED ? 1 : 2)
    kk_down_kernel(const __grid_constant__ kk_down_args a) {
    extern __shared__ __align__(128) char smem[];
    __shared__ kk_choice choice;
    kk_ring<SMALL> ring;
    ring.open(smem);
    float *result = (float *)(smem + kk_ring_cut<SMALL>::ALL); /* [2][pairs][8] */
    const int pairs = a.choice.n_rows * a.choice.n_used;
    const int lane = threadIdx.x % KK_WARP, warp = threadIdx.x / KK_WARP, g = lane / 4;
    /* The kernel before called kk_next after its own wait, so the router's logits are complete. */
    kk_make_choice<KK_BLOCK_THREADS>(&choice, a.choice, false);
    const int b = (int)blockIdx.x, grid = (int)gridDim.x, slices = kk_slices(a.steps);
    enum { STEPS = kk_acts<1, SMALL>::STEPS };
    const int most = PACKED ? kk_slot_steps<1, SMALL>(a.words) : (int)STEPS; /* of a slot */
    int strip_in = b, k_in = warp, slice_in = 0, left = 0;                   /* the next copy */
    const uint4 *one = 0;
    bool more = b < a.strips && warp < choice.n_active;
    auto refill = [&]() {
        if (left == 0 && more) {
            const size_t strip = (size_t)choice.active[k_in] * a.strips + strip_in;
            const int from = kk_slice(a.steps, slice_in);
            one = a.down + (strip * a.steps + from) * a.words;
            left = kk_slice(a.steps, slice_in + 1) - from;
            if (++slice_in == slices) {
                slice_in = 0;
                if ((k_in += KK_BLOCK_WARPS) >= choice.n_active) {
                    k_in = warp;
                    more = (strip_in += grid) < a.strips;
                }
            }
        }
        if (left == 0) return ring.skip();
        const int n = min(most, left);
        ring.fetch(one, 0, n, a.words);
        one += n * a.words;
        left -= n;
    };
    for (int u = 0; u < kk_ring_cut<SMALL>::SLOTS; u++) refill();
    kk_wait();
    kk_next();
    const uint16_t *act = a.act;
    int pitch = a.act_pitch;
    if (a.staged) {
        char *stage = (char *)(result + 2 * pairs * 8);
        kk_stage(stage, a.act, pairs, a.act_pitch);
        act = (const uint16_t *)stage;
        pitch = kk_stage_stride(a.act_pitch) / 2;
        __syncthreads();
    }
    for (int strip = b, nth = 0; strip < a.strips; strip += grid, nth++) {
        float *to = result + (nth & 1) * pairs * 8;
        for (int k = warp; k < choice.n_active; k += KK_BLOCK_WARPS) {
            const int from = choice.first[k], rows = choice.first[k + 1] - from;
            const int one_row = choice.pair[from + (g < rows ? g : 0)];
            const int two_row = choice.pair[from + (g + 8 < rows ? g + 8 : 0)];
            const uint16_t *lo = act + (size_t)one_row * pitch + (lane & 3) * 8;
            const uint16_t *hi = act + (size_t)two_row * pitch + (lane & 3) * 8;
            float sum[4] = {0, 0, 0, 0};
            int step = 0;
            /* Activations of 9 to 16 rows may lie in global memory: they are loaded one chunk
             * ahead. */
            kk_acts<1, SMALL> x, later;
            auto bring = [&](kk_acts<1, SMALL> &v, int from_step) {
#pragma unroll
                for (int i = 0; i < STEPS; i++) {
                    const int at = from_step + i < a.wrap ? from_step + i : from_step + i - a.wrap;
                    v.a[i] = *(const uint4 *)(lo + at * 32);
                    if (HIGH) v.b[i] = *(const uint4 *)(hi + at * 32);
                }
            };
            if (HIGH && !PACKED) bring(x, 0);
            for (int slice = 0; slice < slices; slice++) {
                float c[1][4] = {};
                const int end = kk_slice(a.steps, slice + 1);
                const int begin = kk_slice(a.steps, slice);
                if (PACKED)
                    kk_down_packed<HIGH>(c, ring, a.encoding, most, lo, hi, begin, end, refill);
                for (int n = PACKED ? 0 : end - begin; n > 0; n -= STEPS) {
                    if (!HIGH) bring(x, step);
                    step += min((int)STEPS, n);
                    if (step >= a.wrap) step -= a.wrap;
                    if (HIGH) bring(later, step);
                    kk_chunk<HIGH, 1, SMALL>(c, ring.wait(), n, x);
                    ring.release();
                    refill();
                    if (HIGH) x = later;
                }
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sum[i] = slice == 0 ? c[0][i] : __fadd_rn(sum[i], c[0][i]);
            }
            const int t = lane % 4;
            if (g < rows) *(float2 *)(to + one_row * 8 + 2 * t) = make_float2(sum[0], sum[1]);
            if (HIGH && g + 8 < rows)
                *(float2 *)(to + two_row * 8 + 2 * t) = make_float2(sum[2], sum[3]);
        }
        __syncthreads();
        kk_down_sum(a, choice, strip, to);
    }
}

#endif
