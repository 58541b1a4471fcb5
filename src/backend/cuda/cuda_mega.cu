/* cuda_mega.cu - the kernel of mega.cuh, and its launch. */
#include "launch.cuh"
#include "mega.cuh"

enum { ROWS_LOW = 8, SHARED_MOST = 227 * 1024, STAGE_LEAST = 32 * 1024 };

struct mega_shared {
    kk_choice choice;
    int routed; /* layers whose experts are chosen */
};

struct mega_room {
    float *parts;
    char *stage, *end;
};

/* Norms of row `blockIdx.x` by one block each; between barriers.  Not inlined: its registers
 * would push the ring's out of theirs. */
__device__ __noinline__ void norm_row(const kk_cu_between *b) {
    __shared__ float room[4][16];
    if (b->dim <= KK_ROW_SPAN)
        kk_between_row<1>(*b, blockIdx.x, room);
    else
        kk_between_row<2>(*b, blockIdx.x, room);
}

__device__ __forceinline__ void norm_rows(const kk_cu_between &b) {
    if ((int)blockIdx.x < b.n_rows) norm_row(&b);
}

/* Attention's own registers, likewise. */
__device__ __noinline__ void attend_pages(const kk_cu_mega_layer *l, char *room) {
    kk_attend_stage(l->store, l->attend, room, (int)blockIdx.x, (int)gridDim.x);
}

__device__ __noinline__ void combine_pages(const kk_cu_mega_layer *l) {
    kk_combine_stage(l->attend, (int)blockIdx.x, (int)gridDim.x);
}

/* What the norms of a row will read, on its way into the cache. */
__device__ __forceinline__ void prefetch_row(const float *w, int dim) {
    const int at = (int)threadIdx.x * 32;
    if (w && at < dim) asm volatile("prefetch.global.L2 [%0];" ::"l"(w + at));
}

__device__ __forceinline__ kk_cu_between between(const kk_cu_mega &a) {
    kk_cu_between b = {};
    b.x = a.x;
    b.eps = a.eps;
    b.n_rows = a.n_rows;
    b.dim = b.pitch = a.hidden;
    return b;
}

__device__ __forceinline__ void middle(const kk_cu_mega &a, const kk_cu_mega_layer &l) {
    kk_cu_between b = between(a);
    b.a = a.y;
    b.w = l.norm_att;
    b.scale = 1.0f;
    b.root = __fdiv_rn(1.0f, __fsqrt_rn((float)a.hidden));
    b.z1 = a.z1;
    b.z2 = a.z2;
    b.z3 = a.z3;
    b.w1 = l.norm_ffn;
    b.w2 = l.norm_experts;
    b.w3 = l.router_scale;
    norm_rows(b);
}

/* The end of a layer, and the first norm of the next. */
__device__ __forceinline__ void tail(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                     const float *next) {
    kk_cu_between b = between(a);
    b.a = a.dense;
    b.b = a.moe;
    b.wa = l.norm_dense;
    b.wb = l.norm_moe;
    b.w = l.norm_out;
    b.scale = l.scale;
    if (next) {
        b.z1 = a.z1;
        b.w1 = next;
    }
    norm_rows(b);
}

__device__ __forceinline__ void enter(const kk_cu_mega &a) {
    kk_cu_between b = between(a);
    b.z1 = a.z1;
    b.w1 = a.layer[0].norm_in;
    norm_rows(b);
}

/* Rows that want logits. */
__device__ __forceinline__ void head_norm_rows(const kk_cu_mega &a) {
    const int i = (int)blockIdx.x;
    if (i >= a.n_logits) return;
    kk_cu_between b = between(a);
    const int row = a.head_row ? a.head_row[i] : a.head_first + i;
    /* The row function takes x and its output from one row number. */
    b.x = a.x + (size_t)row * a.hidden - (size_t)i * a.hidden;
    b.n_rows = a.n_logits;
    b.z1 = a.z1;
    b.w1 = a.norm_head;
    norm_rows(b);
}

template <bool HIGH>
__device__ __forceinline__ void ffn(const kk_cu_mega &a, const kk_cu_mega_layer &l, int layer,
                                    kk_drain &d, mega_shared &s, const mega_room &room,
                                    kk_grid &grid) {
    char *at = room.stage;
    kk_acts_at x = kk_mega_stage(at, room.end, a.z1, a.n_rows, a.hidden);
    kk_mega_router<HIGH>(a, l);
    kk_sync();
    kk_mega_strips<HIGH>(a, &s.choice, d, room.parts, layer, MEGA_GATE, x, x);
    kk_grid_sync(grid);

    at = room.stage;
    const kk_acts_at rows = kk_mega_stage(at, room.end, a.z2, a.n_rows, a.hidden);
    x = kk_mega_stage(at, room.end, a.act, a.n_rows, a.ffn);
    kk_choice_args c = {};
    c.logits = a.logits;
    c.slices = kk_slices(a.router_steps);
    c.slice_stride = a.n_rows * a.n_expert;
    c.scale = l.expert_scale;
    c.expert = a.expert;
    c.weight = a.weight;
    c.n_rows = a.n_rows;
    c.n_used = a.n_used;
    c.n_expert = a.n_expert;
    kk_make_choice<KK_MEGA_THREADS>(&s.choice, c, blockIdx.x == 0);
    if (threadIdx.x == 0) { /* after the barrier that ends the choice */
        __threadfence_block();
        *(volatile int *)&s.routed = layer + 1;
    }
    kk_mega_strips<HIGH>(a, &s.choice, d, room.parts, layer, MEGA_EXPERTS, x, rows);
    if ((int)blockIdx.x < a.n_rows) {
        prefetch_row(l.norm_dense, a.hidden);
        prefetch_row(l.norm_moe, a.hidden);
        prefetch_row(l.norm_out, a.hidden);
        if (layer + 1 < a.n_layer) prefetch_row(a.layer[layer + 1].norm_in, a.hidden);
    }
    kk_grid_sync(grid);

    at = room.stage;
    x = kk_mega_stage(at, room.end, a.expert_act, a.n_rows * a.n_used, a.expert_ffn);
    kk_sync();
    kk_mega_down<HIGH>(a, &s.choice, d, room.parts, x);
    kk_grid_sync(grid);
}

template <bool HIGH>
__device__ __forceinline__ void attention(const kk_cu_mega &a, const kk_cu_mega_layer &l, int layer,
                                          kk_drain &d, mega_shared &s, const mega_room &room,
                                          kk_grid &grid) {
    char *at = room.stage;
    kk_acts_at x = kk_mega_stage(at, room.end, a.z1, a.n_rows, a.hidden);
    kk_sync();
    kk_mega_strips<HIGH>(a, &s.choice, d, room.parts, layer, MEGA_QKV, x, x);
    kk_grid_sync(grid);
    attend_pages(&l, room.stage);
    kk_grid_sync(grid);
    combine_pages(&l);
    kk_grid_sync(grid);
    at = room.stage;
    x = kk_mega_stage(at, room.end, a.att, a.n_rows, l.att_width);
    kk_sync();
    kk_mega_strips<HIGH>(a, &s.choice, d, room.parts, layer, MEGA_OUT, x, x);
    if ((int)blockIdx.x < a.n_rows) {
        prefetch_row(l.norm_att, a.hidden);
        prefetch_row(l.norm_ffn, a.hidden);
        prefetch_row(l.norm_experts, a.hidden);
        prefetch_row(l.router_scale, a.hidden);
    }
    kk_grid_sync(grid);
}

template <bool HIGH>
__device__ __forceinline__ void work(const kk_cu_mega &a, mega_shared &s, const kk_mega_rings &r,
                                     char *end) {
    mega_room room;
    room.parts = (float *)(r.data + KK_MEGA_WARPS * r.slots * (KK_MEGA_SLOT + 16));
    room.stage = (char *)room.parts + kk_mega_part_bytes(HIGH);
    room.end = end;
    kk_drain d = kk_drain_open(r);
    kk_grid grid = {a.barrier, 0, a.trace};
    enter(a);
    kk_grid_sync(grid);
    for (int layer = 0; layer < a.n_layer; layer++) {
        const kk_cu_mega_layer &l = a.layer[layer];
        attention<HIGH>(a, l, layer, d, s, room, grid);
        middle(a, l);
        kk_grid_sync(grid);
        ffn<HIGH>(a, l, layer, d, s, room, grid);
        tail(a, l, layer + 1 < a.n_layer ? a.layer[layer + 1].norm_in : NULL);
        kk_grid_sync(grid);
    }
    if (a.head) {
        head_norm_rows(a);
        kk_grid_sync(grid);
        char *at = room.stage;
        const kk_acts_at x = kk_mega_stage(at, room.end, a.z1, a.n_logits, a.hidden);
        kk_sync();
        kk_mega_strips<HIGH>(a, &s.choice, d, room.parts, 0, MEGA_HEAD, x, x);
    }
    kk_grid_leave(grid);
}

template <bool HIGH>
__global__ void __launch_bounds__(KK_MEGA_ALL, 1)
    mega_kernel(const __grid_constant__ kk_cu_mega a, int shared) {
    extern __shared__ __align__(128) char memory[];
    __shared__ mega_shared s;
    if (threadIdx.x == 0) s.routed = s.choice.n_active = 0;
    const kk_mega_rings r = kk_rings_open(memory, a.slots);
    if (threadIdx.x >= KK_MEGA_THREADS)
        kk_mega_feed(a, &s.choice, &s.routed, r);
    else
        work<HIGH>(a, s, r, memory + shared);
}

/* ---- launch ------------------------------------------------------------------------------- */

bool kk_cu_mega_fits(const kk_cu_mega *a) {
    return a->hidden % 32 == 0 && a->ffn % 32 == 0 && a->expert_ffn % 32 == 0 &&
           a->expert_ffn / KK_STEP < KK_SHORT_STEPS && a->hidden <= 2 * KK_ROW_SPAN &&
           a->n_expert <= KK_MAX_EXPERTS && a->n_expert % 8 == 0 && a->n_used <= KK_MAX_USED &&
           a->n_used <= a->n_expert && a->n_layer <= KK_CU_MEGA_LAYERS && a->n_rows <= KK_CU_ROWS &&
           a->vocab % 8 == 0;
}

/* Each phase begins where the one before left off, for one row; more rows choose more experts. */
static void set_turns(kk_cu_mega *a, int groups) {
    const kk_cu_mega_layer *l = &a->layer[0];
    const int units[] = {l->q_strips + l->kv_strips * (l->v ? 2 : 1), a->hidden / 8, a->ffn / 8,
                         a->hidden / 8 + a->n_used * (a->expert_ffn / 8), a->hidden / 8};
    int at = 0;
    for (int i = 0; i < 6; i++) {
        a->turn[i] = at;
        if (i < 5) at = (at + units[i]) % groups;
    }
}

cudaError_t kk_cu_run_mega(kk_cu_at at, kk_cu_mega *a) {
    const bool high = a->n_rows > ROWS_LOW;
    void (*kernel)(kk_cu_mega, int) = high ? mega_kernel<true> : mega_kernel<false>;
    const int room = KK_ATTEND_ROOM, stage = room > STAGE_LEAST ? room : STAGE_LEAST;
    int slots = a->slots > 0 ? a->slots : high ? 3 : 5;
    cudaFuncAttributes fa;
    cudaError_t e = cudaFuncGetAttributes(&fa, (const void *)kernel);
    if (e != cudaSuccess) return e;
    const int most = SHARED_MOST - (int)fa.sharedSizeBytes;
    while (slots > 2 && kk_mega_fixed_bytes(slots, high) + stage > most) slots--;
    a->slots = slots;
    if (!a->flight) a->flight = 4;
    set_turns(a, KK_MEGA_GROUPS * at.sms);
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute together[1] = {};
    c.gridDim = dim3((unsigned)at.sms);
    c.blockDim = dim3(KK_MEGA_ALL);
    c.dynamicSmemBytes = (size_t)most;
    c.stream = at.stream;
    together[0].id = cudaLaunchAttributeCooperative;
    together[0].val.cooperative = 1;
    c.attrs = together;
    c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, kernel, *a, most);
}

cudaError_t kk_cu_setup_mega(void) {
    const void *kernels[] = {(const void *)mega_kernel<false>, (const void *)mega_kernel<true>};
    for (int i = 0; i < 2; i++) {
        cudaFuncAttributes fa;
        cudaError_t e = cudaFuncGetAttributes(&fa, kernels[i]);
        if (e == cudaSuccess)
            e = cudaFuncSetAttribute(kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     SHARED_MOST - (int)fa.sharedSizeBytes);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}
