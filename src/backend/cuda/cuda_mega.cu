/* cuda_mega.cu - the kernel of mega.cuh, and its launch. */
#include "launch.cuh"
#include "mega.cuh"

enum { ROWS_LOW = 8, SHARED_MOST = 227 * 1024, STAGE_LEAST = 18 * 1024 };

/* What a forward carries along. */
struct mega {
    float *parts;
    char *stage, *end;
    float (*sums)[16];
    kk_feed f;
    kk_grid grid;
};

/* Any attention.  Not inlined: a call costs its saved registers, which go to memory. */
__device__ __noinline__ void attend_any(const kk_cu_mega_layer *l, char *room) {
    kk_attend_stage(l->store, l->attend, room, (int)blockIdx.x, (int)gridDim.x);
}

/* LARGE: heads of 256, and of 512 with K = V, in bf16. */
template <bool LARGE>
__device__ __forceinline__ void attend_pages(const kk_cu_mega_layer &l, char *room) {
    if (!LARGE)
        attend_any(&l, room);
    else if (l.attend.slot.head_dim == 256)
        kk_attend_few<256, false>(l.store, l.attend, room, (int)blockIdx.x, (int)gridDim.x);
    else
        kk_attend_few<512, true>(l.store, l.attend, room, (int)blockIdx.x, (int)gridDim.x);
}

/* What the norms of a row will read, on its way into the cache. */
__device__ __forceinline__ void prefetch_row(const float *w, int dim) {
    const int at = (int)threadIdx.x * 32;
    if (at < dim) asm volatile("prefetch.global.L2 [%0];" ::"l"(w + at));
}

/* What attention will read, by blocks that wait for the row blocks: those have neighbours do it. */
__device__ __forceinline__ void prefetch_pages(const kk_cu_mega &a, const kk_cu_attend &t) {
    const int block = (int)blockIdx.x, blocks = (int)gridDim.x;
    if (threadIdx.x == 0) kk_few_prefetch(t, block, blocks);
    if (threadIdx.x == 32 && block < 2 * a.n_rows) kk_few_prefetch(t, block - a.n_rows, blocks);
}

__device__ __forceinline__ void prefetch_middle(const kk_cu_mega &a, const kk_cu_mega_layer &l) {
    kk_mega_prefetch_router(a, l);
    if ((int)blockIdx.x < a.n_rows) {
        prefetch_row(l.norm_att, a.hidden);
        prefetch_row(l.norm_ffn, a.hidden);
        prefetch_row(l.norm_experts, a.hidden);
        prefetch_row(l.router_scale, a.hidden);
    }
    if (blockIdx.x == gridDim.x - 1) prefetch_row(l.expert_scale, a.n_expert);
}

__device__ __forceinline__ void prefetch_tail(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                              const float *next) {
    if ((int)blockIdx.x >= a.n_rows) return;
    prefetch_row(l.norm_dense, a.hidden);
    prefetch_row(l.norm_moe, a.hidden);
    prefetch_row(l.norm_out, a.hidden);
    if (next) prefetch_row(next, a.hidden);
}

/* Rows that want logits. */
__device__ __forceinline__ void head_norm(const kk_cu_mega &a, mega &m) {
    const int i = (int)blockIdx.x;
    if (i < a.n_logits) {
        const int row = a.head_row ? a.head_row[i] : a.head_first + i;
        kk_mega_norm(a, a.x + (size_t)row * (size_t)a.hidden, a.norm_head, m.sums);
    }
    kk_grid_sync(m.grid);
}

/* A layer's pointers, word by word. */
__device__ __forceinline__ void copy_layer(kk_mega_shared &s, const kk_cu_mega &a, int layer) {
    const int n = (int)(sizeof(kk_cu_mega_layer) / 4), i = (int)threadIdx.x;
    if (layer >= a.n_layer || i >= n) return;
    ((uint32_t *)&s.layer[layer & 1])[i] = ((const uint32_t *)&a.layer[layer])[i];
}

/* What a phase takes in: its rows in shared memory, its experts chosen. */
template <bool HIGH>
__device__ __forceinline__ void begin(const kk_cu_mega &a, kk_mega_shared &s, mega &m, int layer,
                                      int phase, kk_acts_at &x, kk_acts_at &more) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    const uint16_t *from = a.z1;
    int rows = a.n_rows, width = a.hidden;
    if (phase == MEGA_OUT) {
        from = a.att;
        width = l.att_width;
    } else if (phase == MEGA_EXPERTS) {
        from = a.act;
        width = a.ffn;
    } else if (phase == MEGA_DOWN) {
        from = a.expert_act;
        rows *= a.n_used;
        width = a.expert_ffn;
    } else if (phase == MEGA_HEAD) {
        rows = a.n_logits;
    }
    /* Few rows are chosen for by warps that need not stage. */
    const int skip = phase == MEGA_EXPERTS && a.n_rows <= 4 ? a.n_rows : 0;
    if (phase == MEGA_EXPERTS && (int)threadIdx.x / KK_WARP < a.n_rows)
        kk_choose_row(&s.choice, a.logits, kk_slices(a.router_steps), a.n_rows * a.n_expert,
                      l.expert_scale, (int)threadIdx.x / KK_WARP, a.n_used, a.n_expert);
    char *at = m.stage;
#pragma unroll 1
    for (int i = 0; i < (phase == MEGA_EXPERTS ? 2 : 1); i++) {
        x = more;
        more = kk_mega_stage(at, m.end, from, rows, width, skip);
        if (i == 0) x = more;
        from = a.z2;
        width = a.hidden;
    }
    if (phase == MEGA_QKV) copy_layer(s, a, layer + 1);
    if (phase == MEGA_OUT) prefetch_middle(a, l);
    if (phase == MEGA_GATE) kk_mega_router<HIGH>(a, l);
    if (phase == MEGA_EXPERTS) {
        kk_list_rows(&s.choice, a.n_rows, a.n_used);
        if (blockIdx.x == 0 && (int)threadIdx.x < a.n_rows * a.n_used) {
            a.expert[threadIdx.x] = s.choice.chosen[threadIdx.x];
            a.weight[threadIdx.x] = s.choice.weight[threadIdx.x];
        }
        m.f.routed = layer + 1;
        prefetch_tail(a, l, layer + 1 < a.n_layer ? s.layer[(layer + 1) & 1].norm_in : NULL);
    }
    kk_sync();
    kk_grid_mark(m.grid);
}

/* What lies between a phase's sums and the next phase. */
template <bool LARGE>
__device__ __forceinline__ void end(const kk_cu_mega &a, kk_mega_shared &s, mega &m, int layer,
                                    int phase) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    const bool mine = (int)blockIdx.x < a.n_rows;
    if (phase == MEGA_QKV) {
        kk_feed_rest(m.f, s);
        attend_pages<LARGE>(l, m.stage);
        kk_grid_sync(m.grid);
        kk_combine_stage(l.attend, (int)blockIdx.x, (int)gridDim.x);
        kk_grid_sync(m.grid);
        kk_feed_wake(m.f, s);
    } else if (phase == MEGA_OUT) {
        if (mine) kk_mega_middle(a, l, m.sums);
        kk_grid_sync(m.grid);
    } else if (phase == MEGA_DOWN) {
        const float *next = layer + 1 < a.n_layer ? s.layer[(layer + 1) & 1].norm_in : NULL;
        if (mine)
            kk_mega_tail(a, l, next, m.sums);
        else if (LARGE && next)
            prefetch_pages(a, s.layer[(layer + 1) & 1].attend);
        kk_grid_sync(m.grid);
    }
}

template <bool HIGH, bool LARGE>
__global__ void __launch_bounds__(KK_MEGA_THREADS, 1)
    mega_kernel(const __grid_constant__ kk_cu_mega a, int shared) {
    extern __shared__ __align__(128) char memory[];
    __shared__ kk_mega_shared s;
    __shared__ float sums[4][16];
    mega m;
    kk_feed_open<HIGH>(m.f, a, memory);
    m.parts = (float *)(memory + kk_mega_ring_bytes(a.slots, HIGH));
    m.stage = (char *)m.parts + kk_mega_part_bytes(a.n_rows, a.n_used);
    m.end = memory + shared;
    m.sums = sums;
    m.grid = kk_grid{a.barrier, 0, a.trace};
    copy_layer(s, a, 0);
    if (threadIdx.x == 0) s.choice.n_active = 0;
    kk_sync();
    if ((int)blockIdx.x < a.n_rows)
        kk_mega_norm(a, a.x + (size_t)blockIdx.x * (size_t)a.hidden, s.layer[0].norm_in, sums);
    kk_grid_sync(m.grid);
    const int phases = a.n_layer * MEGA_HEAD;
    for (int i = 0, layer = 0, phase = 0; i < phases + (a.head ? 1 : 0); i++) {
        kk_acts_at x, more;
        if (i == phases) {
            phase = MEGA_HEAD;
            head_norm(a, m);
        }
        begin<HIGH>(a, s, m, layer, phase, x, more);
        kk_mega_phase_units<HIGH>(a, s, m.f, m.parts, layer, phase, x, more);
        if (phase == MEGA_HEAD) break;
        kk_grid_sync(m.grid);
        end<LARGE>(a, s, m, layer, phase);
        if (++phase == MEGA_HEAD) {
            phase = 0;
            layer++;
        }
    }
    kk_grid_leave(m.grid);
}

/* ---- launch ------------------------------------------------------------------------------- */

bool kk_cu_mega_fits(const kk_cu_mega *a) {
    return a->hidden % 32 == 0 && a->ffn % 32 == 0 && a->expert_ffn % 32 == 0 &&
           a->expert_ffn / KK_STEP < KK_SHORT_STEPS && a->hidden <= 2 * KK_ROW_SPAN &&
           a->n_expert <= KK_MAX_EXPERTS && a->n_expert % 8 == 0 && a->n_used <= KK_MAX_USED &&
           a->n_used <= a->n_expert && a->n_layer <= KK_CU_MEGA_LAYERS && a->n_rows <= KK_CU_ROWS &&
           a->vocab % 16 == 0;
}

static bool is_large(const kk_cu_mega *a) {
    for (int i = 0; i < a->n_layer; i++) {
        const kk_cu_slot *s = &a->layer[i].attend.slot;
        if (s->format != KK_CU_BF16 || s->head_dim != (s->k_eq_v ? 512 : 256)) return false;
    }
    return true;
}

/* Each phase begins where the one before left off, for one row; more rows choose more experts. */
static void set_turns(kk_cu_mega *a, int groups) {
    const kk_cu_mega_layer *l = &a->layer[0];
    const int units[] = {(l->q_strips + l->kv_strips * (l->v ? 2 : 1)) / 2, a->hidden / 16,
                         a->ffn / 8, a->hidden / 16 + a->n_used * (a->expert_ffn / 8),
                         a->hidden / 16};
    int at = 0;
    for (int i = 0; i < 6; i++) {
        a->turn[i] = at;
        if (i < 5) at = (at + units[i]) % groups;
    }
}

cudaError_t kk_cu_run_mega(kk_cu_at at, kk_cu_mega *a) {
    const bool high = a->n_rows > ROWS_LOW;
    const bool large = is_large(a);
    void (*kernel)(kk_cu_mega, int) = high ? large ? mega_kernel<true, true> : mega_kernel<true, false>
                                      : large ? mega_kernel<false, true>
                                              : mega_kernel<false, false>;
    const int room = KK_ATTEND_ROOM, stage = room > STAGE_LEAST ? room : STAGE_LEAST;
    const int parts = kk_mega_part_bytes(a->n_rows, a->n_used);
    int slots = a->slots > 0 ? a->slots : 4;
    cudaFuncAttributes fa;
    cudaError_t e = cudaFuncGetAttributes(&fa, (const void *)kernel);
    if (e != cudaSuccess) return e;
    const int most = SHARED_MOST - (int)fa.sharedSizeBytes;
    /* Two slots at least, and then rather rows in shared memory than more slots. */
    const int rows = a->n_rows * kk_stage_stride(a->layer[0].att_width);
    while (slots > 2 && kk_mega_ring_bytes(slots, high) + parts + (rows > stage ? rows : stage) > most)
        slots--;
    a->slots = slots;
    set_turns(a, KK_MEGA_GROUPS * at.sms);
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute together[1] = {};
    c.gridDim = dim3((unsigned)at.sms);
    c.blockDim = dim3(KK_MEGA_THREADS);
    c.dynamicSmemBytes = (size_t)most;
    c.stream = at.stream;
    together[0].id = cudaLaunchAttributeCooperative;
    together[0].val.cooperative = 1;
    c.attrs = together;
    c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, kernel, *a, most);
}

cudaError_t kk_cu_setup_mega(void) {
    const void *kernels[] = {
        (const void *)mega_kernel<false, false>, (const void *)mega_kernel<false, true>,
        (const void *)mega_kernel<true, false>, (const void *)mega_kernel<true, true>};
    for (int i = 0; i < 4; i++) {
        cudaFuncAttributes fa;
        cudaError_t e = cudaFuncGetAttributes(&fa, kernels[i]);
        if (e == cudaSuccess)
            e = cudaFuncSetAttribute(kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     SHARED_MOST - (int)fa.sharedSizeBytes);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}
