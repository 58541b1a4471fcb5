/* cuda_mega.cu - the kernel of mega.cuh, and its launch. */
#include "launch.cuh"
#include "mega.cuh"

enum { MEGA_EXPERTS_MOST = 128, ROWS_LOW = 8, SHARED_MOST = KK_CU_SHARED, STAGE_LEAST = 18 * 1024 };

extern __shared__ __align__(128) char memory[];

/* Rings, then sums, then room for staged rows and for attention: made from the parameter when
 * needed, because whatever is kept through a forward takes registers from all of it. */
__device__ __forceinline__ float *parts_of(const kk_cu_mega &a) {
    return (float *)(memory + a.parts_at);
}
__device__ __forceinline__ char *stage_of(const kk_cu_mega &a) { return memory + a.stage_at; }

/* Any attention.  Not inlined: a call costs its saved registers, which go to memory. */
__device__ __noinline__ void attend_any(const kk_cu_mega_layer *l, char *room) {
    kk_attend_stage(l->store, l->attend, room, (int)blockIdx.x, (int)gridDim.x);
}

__device__ __noinline__ void combine_any(const kk_cu_mega_layer *l) {
    kk_combine_stage(l->attend, (int)blockIdx.x, (int)gridDim.x);
}

/* LARGE: one session, heads of 256, and of 512 with K = V, in bf16. */
template <bool LARGE>
__device__ __forceinline__ void attend_pages(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                             int pos, char *room) {
    if (!LARGE)
        attend_any(&l, room);
    else if (l.attend.slot.head_dim == 256)
        kk_attend_few<256, false>(l.store, l.attend, pos, a.n_rows, room);
    else
        kk_attend_few<512, true>(l.store, l.attend, pos, a.n_rows, room);
}

/* What the norms of a row will read, on its way into the cache. */
__device__ __forceinline__ void prefetch_row(const float *w, int dim) {
    const int at = kk_tid() * 32;
    if (at < dim) asm volatile("prefetch.global.L2 [%0];" ::"l"(w + at));
}

__device__ __forceinline__ void prefetch_middle(const kk_cu_mega &a, const kk_cu_mega_layer &l) {
    kk_mega_prefetch_router(a, l);
    if (kk_bid() < a.n_rows) {
        prefetch_row(l.norm_att, a.hidden);
        prefetch_row(l.norm_ffn, a.hidden);
        prefetch_row(l.norm_experts, a.hidden);
        prefetch_row(l.router_scale, a.hidden);
    }
    if (kk_bid() == gridDim.x - 1) prefetch_row(l.expert_scale, a.n_expert);
}

__device__ __forceinline__ void prefetch_tail(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                              const float *next) {
    if (kk_bid() >= a.n_rows) return;
    prefetch_row(l.norm_dense, a.hidden);
    prefetch_row(l.norm_moe, a.hidden);
    prefetch_row(l.norm_out, a.hidden);
    if (next) prefetch_row(next, a.hidden);
}

/* Rows that want logits. */
__device__ __forceinline__ void head_norm(const kk_cu_mega &a, kk_mega_shared &s) {
    const int i = kk_bid();
    if (i < a.n_logits) {
        const int row = a.head_row ? a.head_row[i] : a.head_first + i;
        kk_mega_norm(a, a.x + (size_t)row * (size_t)a.hidden, a.norm_head, s.sums);
    }
    kk_grid_sync(a, s);
}

/* What a phase takes in: its rows in shared memory, its experts chosen. */
template <bool HIGH>
__device__ __forceinline__ void begin(const kk_cu_mega &a, kk_mega_shared &s, kk_feed &f, int layer,
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
    if (phase == MEGA_EXPERTS && kk_tid() / KK_WARP < a.n_rows)
        kk_choose_row<MEGA_EXPERTS_MOST>(&s.choice, a.logits, kk_slices(a.router_steps),
                                         a.n_rows * a.n_expert, l.expert_scale, kk_tid() / KK_WARP,
                                         a.n_used, a.n_expert);
    char *at = stage_of(a);
#pragma unroll 1
    for (int i = 0; i < (phase == MEGA_EXPERTS ? 2 : 1); i++) {
        more = kk_mega_stage(at, memory + a.shared, from, rows, width, skip);
        if (i == 0) x = more;
        from = a.z2;
        width = a.hidden;
    }
    if (phase == MEGA_OUT) prefetch_middle(a, l);
    if (phase == MEGA_GATE) kk_mega_router<HIGH>(a, l);
    if (phase == MEGA_EXPERTS) {
        kk_list_rows(&s.choice, a.n_rows, a.n_used);
        if (kk_bid() == 0 && kk_tid() < a.n_rows * a.n_used) {
            a.expert[kk_tid()] = s.choice.chosen[kk_tid()];
            a.weight[kk_tid()] = s.choice.weight[kk_tid()];
        }
        f.routed = layer + 1;
        prefetch_tail(a, l, layer + 1 < a.n_layer ? s.layer[(layer + 1) & 1].norm_in : NULL);
    }
    kk_sync();
    kk_grid_mark(a, s);
}

/* What lies between a phase's sums and the next phase. */
template <bool LARGE>
__device__ __forceinline__ void end(const kk_cu_mega &a, kk_mega_shared &s, kk_feed &f, int layer,
                                    int phase) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    const bool mine = kk_bid() < a.n_rows;
    if (phase == MEGA_QKV) {
        kk_feed_rest(f, s);
        attend_pages<LARGE>(a, l, s.pos, stage_of(a));
        kk_grid_sync(a, s);
        if (LARGE)
            kk_combine_few(l.attend, s.pos, a.n_rows);
        else
            combine_any(&l);
        kk_grid_sync(a, s);
        kk_feed_wake(f, a, s, memory);
    } else if (phase == MEGA_OUT) {
        if (mine) kk_mega_middle(a, l, s.sums);
        kk_grid_sync(a, s);
    } else if (phase == MEGA_DOWN) {
        const float *next = layer + 1 < a.n_layer ? s.layer[(layer + 1) & 1].norm_in : NULL;
        if (mine) kk_mega_tail(a, l, next, s.sums);
        kk_grid_sync(a, s);
    }
}

template <bool HIGH, bool LARGE>
__global__ void __launch_bounds__(KK_MEGA_THREADS, 1)
    mega_kernel(const __grid_constant__ kk_cu_mega a) {
    __shared__ kk_mega_shared s;
    kk_feed f;
    kk_feed_open(f, a, memory);
    kk_mega_copy_layer(a, s, 0);
    if (threadIdx.x == 0) {
        s.choice.n_active = 0;
        s.barrier = 0;
        s.marks = 0;
        s.pos = (int)a.layer[0].attend.rows.tile[0].pos;
    }
    kk_sync();
    if ((int)blockIdx.x < a.n_rows)
        kk_mega_norm(a, a.x + (size_t)blockIdx.x * (size_t)a.hidden, s.layer[0].norm_in, s.sums);
    kk_grid_sync(a, s);
    const int phases = a.n_layer * MEGA_HEAD;
#pragma unroll 1
    for (int i = 0; i < phases + (a.head ? 1 : 0); i++) {
        kk_acts_at x, more;
        int layer = i / MEGA_HEAD, phase = i - layer * MEGA_HEAD;
        if (i == phases) {
            phase = MEGA_HEAD;
            head_norm(a, s);
        }
        begin<HIGH>(a, s, f, layer, phase, x, more);
        kk_mega_phase_units<HIGH>(a, s, f, parts_of(a), layer, phase, x, more);
        if (phase == MEGA_HEAD) break;
        kk_grid_sync(a, s, phase == MEGA_OUT ? layer + 1 : KK_CU_MEGA_LAYERS);
        end<LARGE>(a, s, f, layer, phase);
    }
    kk_grid_leave(a, s);
}

/* ---- launch ------------------------------------------------------------------------------- */

bool kk_cu_mega_fits(const kk_cu_mega *a) {
    return a->hidden % 32 == 0 && a->ffn % 32 == 0 && a->expert_ffn % 32 == 0 &&
           a->expert_ffn / KK_STEP < KK_SHORT_STEPS && a->hidden <= 2 * KK_ROW_SPAN &&
           a->n_expert <= MEGA_EXPERTS_MOST && a->n_expert % 8 == 0 && a->n_used <= KK_MAX_USED &&
           a->n_used <= a->n_expert && a->n_layer <= KK_CU_MEGA_LAYERS && a->n_rows <= KK_CU_ROWS &&
           a->vocab % 16 == 0;
}

static bool is_large(const kk_cu_mega *a) {
    for (int i = 0; i < a->n_layer; i++) {
        const kk_cu_slot *s = &a->layer[i].attend.slot;
        const kk_cu_attend *t = &a->layer[i].attend;
        if (s->format != KK_CU_BF16 || s->head_dim != (s->k_eq_v ? 512 : 256) || t->sink ||
            t->block || t->rows.tiles != 1 || t->n_rot % 4 || !t->n_rot ||
            a->layer[i].store.v_raw || !a->layer[i].store.k)
            return false;
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
    void (*kernel)(kk_cu_mega) = high ? large ? mega_kernel<true, true> : mega_kernel<true, false>
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
    while (slots > 2 && kk_mega_ring_bytes(slots) + parts + (rows > stage ? rows : stage) > most)
        slots--;
    a->slots = slots;
    a->dense_units = a->hidden / 16;
    a->gate_units = a->ffn / 8;
    a->expert_units = a->expert_ffn / 8;
    a->head_units = a->vocab / 16;
    a->hidden_steps = a->hidden / KK_STEP;
    a->ffn_steps = a->ffn / KK_STEP;
    a->expert_steps = a->expert_ffn / KK_STEP;
    a->part_pitch = kk_mega_pitch(a->n_rows);
    a->part_floats = parts / (KK_MEGA_GROUPS * 2 * 4);
    a->parts_at = kk_mega_ring_bytes(slots);
    a->stage_at = a->parts_at + parts;
    a->shared = most;
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
    return cudaLaunchKernelEx(&c, kernel, *a);
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
