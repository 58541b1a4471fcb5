/* cuda_mega.cu - launches of the persistent kernel of mega.cuh: which of its variants takes a
 * forward, and where everything lies in a block's shared memory. */
#include "mega_kernel.cuh"

bool kk_cu_mega_fits(const kk_cu_mega *a) {
    return a->hidden == KK_CU_26B_HIDDEN && a->ffn == KK_CU_26B_FFN &&
           a->expert_ffn == KK_CU_26B_EXPERT_FFN && a->n_expert == KK_CU_26B_EXPERTS &&
           a->n_used == KK_CU_26B_USED && a->router_steps == KK_CU_26B_HIDDEN / KK_STEP &&
           a->expert_strips == 2 * KK_CU_26B_EXPERT_FFN / 8 &&
           a->down_strips == KK_CU_26B_HIDDEN / 8 && a->n_rows <= KK_CU_ROWS;
}

static bool any_packed(const kk_cu_mega_layer *l) {
    return (l->as.q | l->as.k | l->as.v | l->as.o | l->as.gate | l->as.down | l->as.experts |
            l->as.experts_down) != KK_W_BF16;
}

bool kk_cu_mega_takes(kk_cu_at at, const kk_cu_mega_layer *l) {
    const kk_cu_slot *s = &l->attend.slot;
    if (s->format != KK_CU_BF16 && at.shared < KK_FORMATS_SHARED) return false;
    if (s->format == KK_CU_F32 && any_packed(l)) return false; /* not compiled */
    const kk_cu_attend *t = &l->attend;
    const int width = KK_CU_26B_HEADS * s->head_dim;
    return s->head_dim == (s->k_eq_v ? 512 : 256) && s->n_kv_head == (s->k_eq_v ? 2 : 8) &&
           t->n_head == KK_CU_26B_HEADS && !t->sink && !t->block &&
           t->rows.tile_most <= KK_CU_ROWS && t->n_rot && t->n_rot % 4 == 0 && !l->store.v_raw &&
           l->store.k && l->att_width == width && l->q_strips * 8 == width &&
           l->kv_strips * 8 == s->n_kv_head * s->head_dim;
}

size_t kk_cu_mega_parts(kk_cu_at at, kk_cu_mega_layer *l, int32_t n_rows) {
    kk_cu_attend *t = &l->attend;
    const int32_t pages = t->rows.most_pages;
    const bool far = pages > KK_LONG_FROM && at.shared >= KK_FORMATS_SHARED && t->slot.k_eq_v &&
                     t->slot.head_dim == 512 && !t->window && t->n_rot == KK_LONG_ROT &&
                     t->slot.format != KK_CU_F32;
    l->spans = far ? (pages + KK_SPAN - 1) / KK_SPAN : 0;
    if (far) t->rows.most_pages = l->spans + 2; /* and the last pages of each session */
    const size_t own = far ? (size_t)at.sms * (KK_SPAN - 1) * 16 * KK_LONG_PART * 4 : 0;
    return (size_t)n_rows *
               kk_cu_attend_row_bytes(t->n_head, t->slot.head_dim, t->rows.most_pages) +
           own;
}

static int units_of(const kk_cu_mega_layer *l) {
    return (l->q_strips + l->kv_strips * (l->v ? 2 : 1)) / 2;
}

/* Shifts each phase's first block so that it starts where the phase before ended; computed for one
 * row, since more rows activate more experts. */
static void set_shifts(kk_cu_mega *a, int groups) {
    const int units[] = {
        units_of(&a->layer[0]),          a->hidden / 16, a->ffn / 8, a->hidden / 16,
        a->n_used * (a->expert_ffn / 8), a->hidden / 16};
    int at = 0;
    for (int i = 0; i < 7; i++) {
        a->shift[i] = at;
        if (i < 6) at = (at + units[i]) % groups;
    }
    if (a->n_rows > 1) a->shift[MEGA_EXPERTS] = 0; /* first the groups that had no unit of DENSE */
}

/* All kernels, those with the largest rings first. */
static const kk_mega_list *const lists[] = {
    &kk_mega_plain,  &kk_mega_formats,        &kk_mega_far,
    &kk_mega_packed, &kk_mega_packed_formats, &kk_mega_packed_far};

/* Where everything lies in the block's shared memory; false: it does not fit. */
static bool lay_out(kk_cu_mega *a, const kk_mega_variant &k, int shared, cudaError_t *e) {
    cudaFuncAttributes fa;
    *e = cudaFuncGetAttributes(&fa, (const void *)k.fn);
    if (*e != cudaSuccess) return false;
    const int parts = kk_mega_part_bytes(a->n_rows, a->n_used);
    a->part_pitch = kk_mega_pitch(a->n_rows);
    a->part_floats = parts / (KK_MEGA_GROUPS * 2 * 4);
    a->parts_at = k.rings;
    a->stage_at = a->parts_at + parts;
    a->shared = shared - (int)fa.sharedSizeBytes;
    return a->stage_at + k.smem <= a->shared;
}

/* What a forward asks of a variant besides its rows. */
struct wanted {
    bool many, far, packed;
    int format;
};

static bool is_wanted(const kk_mega_variant &k, const wanted &w) {
    return k.many == w.many && k.far == w.far && k.packed == w.packed && k.format == w.format;
}

/* The kernel with the largest rings that fit, NULL if none does. */
static const kk_mega_variant *find_kernel(kk_cu_at at, kk_cu_mega *a, cudaError_t *e) {
    wanted w = {a->layer[0].attend.rows.tiles > 1, false, a->packed,
                a->layer[0].attend.slot.format};
    for (int i = 0; i < a->n_layer; i++) w.far = w.far || a->layer[i].spans > 0;
    *e = cudaErrorInvalidValue;
    for (const kk_mega_list *list : lists)
        for (int i = 0; i < list->n; i++)
            for (const kk_mega_variant &k : list->of[i]) {
                /* The kernel of a single row needs a block for every piece of the router. */
                if (!is_wanted(k, w) || k.rows < a->n_rows ||
                    (k.rows == 1 && at.sms < KK_ROUTER_PIECES))
                    continue;
                if (lay_out(a, k, at.shared, e)) return &k;
                if (*e != cudaSuccess) return NULL;
                break;
            }
    return NULL;
}

cudaError_t kk_cu_run_mega(kk_cu_at at, kk_cu_mega *a) {
    cudaError_t e;
    a->packed = a->head && a->head_as != KK_W_BF16;
    for (int k = 0; k < a->n_layer; k++) {
        a->layer[k].qkv_units = units_of(&a->layer[k]);
        a->packed = a->packed || any_packed(&a->layer[k]);
    }
    const kk_mega_variant *kind = find_kernel(at, a, &e);
    if (!kind) return e == cudaSuccess ? cudaErrorInvalidValue : e;
    set_shifts(a, KK_MEGA_GROUPS * at.sms);
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute together[1] = {};
    c.gridDim = dim3((unsigned)at.sms);
    c.blockDim = dim3(KK_MEGA_BLOCK);
    c.dynamicSmemBytes = (size_t)a->shared;
    c.stream = at.stream;
    together[0].id = cudaLaunchAttributeCooperative;
    together[0].val.cooperative = 1;
    c.attrs = together;
    c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, kind->fn, *a);
}

static cudaError_t set_up(const kk_mega_variant &k, int32_t shared) {
    cudaFuncAttributes fa;
    const cudaError_t e = cudaFuncGetAttributes(&fa, (const void *)k.fn);
    if (e != cudaSuccess) return e;
    return cudaFuncSetAttribute((const void *)k.fn, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shared - (int)fa.sharedSizeBytes);
}

cudaError_t kk_cu_setup_mega(int32_t shared) {
    for (const kk_mega_list *list : lists)
        for (int i = 0; i < list->n; i++)
            for (const kk_mega_variant &k : list->of[i]) {
                const cudaError_t e = set_up(k, shared);
                if (e != cudaSuccess) return e;
            }
    return cudaSuccess;
}
