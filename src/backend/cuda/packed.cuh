/* packed.cuh - weights that stay packed in device memory and are unpacked in registers.
 *
 * A K step of a strip, 8 outputs by 32 inputs, is one contiguous block.  Lane l of a warp holds the
 * codes of output l / 4 and of the inputs 8 (l % 4) .. 8 (l % 4) + 7, as it holds their values
 * where weights are bf16 (stream.cuh):
 *
 *    low bits   [32 lanes] 4 bytes, a nibble for each input   (8 bits: 8 bytes, a byte for each)
 *    high bits  [32 lanes] 1 byte (5 bits) or 2 bytes (6 bits)
 *    scales     [8 outputs] f16 d; or pairs of f16: d and m (A4, A5, A8), d of the first 16 inputs
 *               and d of the others (I6)
 *
 *    I4 144 B | I5 176 B | I6 224 B | I8 272 B | A4 160 B | A5 192 B | A8 288 B     (bf16: 512 B)
 *
 *    values: I4 d (code - 8), I5 d (code - 16), I6 d (code - 32), I8 d times a signed byte,
 *            A4, A5, A8 d code + m
 *
 * Codes less their offset are integers of at most 9 bits, which bf16 holds exactly: they go through
 * the tensor cores as they are, and a step's sum is multiplied by its scale in float32.  The
 * arithmetic of a step, which every kernel here keeps to:
 *
 *    t = the two products of the step, from zero;      c = fma(t, d, c)
 *    A: u = two products of ones with the inputs;      c = fma(u, m, c)
 *    I6: t of the first 16 inputs and then of the others, with codes of the rest as zeros
 *
 * The order of codes in a word makes two neighbouring inputs come out of one shift and one mask as
 * the halves of a register.  A code below 128 ORed into the bits of 128.0 is the number 128 +
 * code. */
#ifndef KK_CUDA_PACKED_CUH
#define KK_CUDA_PACKED_CUH

#include "arith.cuh"
#include "cuda_ops.h"

/* ---- the layout of a block ---------------------------------------------------------------- */

__host__ __device__ __forceinline__ constexpr int kk_words_of(int w) { return KK_CU_WORDS(w); }

template <int W> struct kk_packing {
    static constexpr int ENCODING = W;
    static constexpr bool PLAIN = W == KK_W_BF16;
    static constexpr bool AFFINE = W == KK_W_A4 || W == KK_W_A5 || W == KK_W_A8;
    static constexpr bool HALVES = W == KK_W_I6; /* two scales in a step */
    static constexpr int BITS = W == KK_W_I4 || W == KK_W_A4   ? 4
                                : W == KK_W_I5 || W == KK_W_A5 ? 5
                                : W == KK_W_I6                 ? 6
                                                               : 8;
    static constexpr int HIGH_AT = 128; /* 4 low bits of 256 codes */
    static constexpr int SCALES_AT = 32 * BITS;
    static constexpr int SCALE_BYTES = AFFINE || HALVES ? 4 : 2; /* of an output */
    static constexpr int BYTES = PLAIN ? 512 : SCALES_AT + 8 * SCALE_BYTES;
    static_assert(BYTES == 16 * kk_words_of(W), "whole words, which bulk copies need");
    /* -(128 + offset) as a pair of bf16. */
    static constexpr uint32_t OFFSET = W == KK_W_I4   ? 0xc308c308u
                                       : W == KK_W_I5 ? 0xc310c310u
                                       : W == KK_W_I6 ? 0xc320c320u
                                                      : 0xc300c300u;
};

/* ---- unpacking ---------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t kk_bf16x2_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* 128.0 in both halves.  Not a literal: an instruction takes one literal, and the mask is that. */
static __constant__ uint32_t kk_bf16_128s = 0x43004300u;
/* The masked bits of a, ORed into 128.0s. */
__device__ __forceinline__ uint32_t kk_into_128s(uint32_t a, uint32_t mask) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(kk_bf16_128s));
    return d;
}

/* A lane's codes of one step, as they lie in memory. */
template <int W> struct kk_codes { uint32_t low, more; /* more: high bits, or the second word */ };
template <> struct kk_codes<KK_W_BF16> { uint4 values; };

__device__ __forceinline__ uint4 kk_lds(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
__device__ __forceinline__ uint2 kk_lds64(uint32_t at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ uint32_t kk_lds32(uint32_t at) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ uint32_t kk_lds16(uint32_t at) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ uint32_t kk_lds8(uint32_t at) {
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}

/* block: shared address of the step's block. */
template <int W>
__device__ __forceinline__ kk_codes<W> kk_codes_load(uint32_t block, uint32_t lane) {
    using p = kk_packing<W>;
    kk_codes<W> c = {};
    if constexpr (p::PLAIN) {
        c.values = kk_lds(block + lane * 16);
    } else if constexpr (p::BITS == 8) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(c.low), "=r"(c.more)
                     : "r"(block + lane * 8)
                     : "memory");
    } else {
        c.low = kk_lds32(block + lane * 4);
        if (p::BITS == 5) c.more = kk_lds8(block + p::HIGH_AT + lane);
        if (p::BITS == 6) c.more = kk_lds16(block + p::HIGH_AT + lane * 2);
    }
    return c;
}

/* Two bytes in the halves of a register as numbers: signed ones, or (A8) unsigned ones.  The top
 * bit of a byte, ORed into 128.0, makes it 256.0. */
template <int W> __device__ __forceinline__ uint32_t kk_bytes_bf16(uint32_t two) {
    const uint32_t low = kk_into_128s(two, 0x007f007fu), top = kk_into_128s(two, 0x00800080u);
    if (W == KK_W_A8)
        return kk_bf16x2_fma(top, 0x3f803f80u, kk_bf16x2_fma(low, 0x3f803f80u, 0xc380c380u));
    return kk_bf16x2_fma(top, 0xbf80bf80u, low);
}

/* The codes less their offset, as eight bf16 in the order of the inputs. */
template <int W> __device__ __forceinline__ uint4 kk_codes_bf16(const kk_codes<W> &c) {
    using p = kk_packing<W>;
    if constexpr (p::PLAIN) {
        return c.values;
    } else if constexpr (p::BITS == 8) {
        return make_uint4(kk_bytes_bf16<W>(c.low), kk_bytes_bf16<W>(c.low >> 8),
                          kk_bytes_bf16<W>(c.more), kk_bytes_bf16<W>(c.more >> 8));
    } else {
        uint32_t high = 0, v[4];
        if (p::BITS == 5) high = (c.more & 0x0fu) << 4 | (c.more & 0xf0u) << 16;
        if (p::BITS == 6) high = (c.more & 0xffu) << 4 | (c.more & 0xff00u) << 12;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t two = kk_into_128s(c.low >> 4 * k, 0x000f000fu);
            if (p::BITS == 5) two |= high >> k & 0x00100010u;
            if (p::BITS == 6) two |= high >> 2 * k & 0x00300030u;
            v[k] = kk_bf16x2_fma(two, 0x3f803f80u, p::OFFSET);
        }
        return make_uint4(v[0], v[1], v[2], v[3]);
    }
}

/* An output's scales of one step: d and, where there are two, m or the other d. */
struct kk_scales {
    float d, m;
};
template <int W> __device__ __forceinline__ kk_scales kk_scales_of(uint32_t bits) {
    kk_scales s;
    s.d = __half2float(__ushort_as_half((uint16_t)bits));
    s.m = kk_packing<W>::SCALE_BYTES == 4 ? __half2float(__ushort_as_half((uint16_t)(bits >> 16)))
                                          : 0.0f;
    return s;
}
/* The bits of output o's scales; of bf16, which has none, 0. */
template <int W> __device__ __forceinline__ uint32_t kk_scales_load(uint32_t block, uint32_t o) {
    using p = kk_packing<W>;
    if (p::PLAIN) return 0;
    const uint32_t at = block + p::SCALES_AT + o * p::SCALE_BYTES;
    return p::SCALE_BYTES == 4 ? kk_lds32(at) : kk_lds16(at);
}
/* The bits of the scales of outputs o (even) and o + 1. */
template <int W> __device__ __forceinline__ uint2 kk_scales_pair(uint32_t block, uint32_t o) {
    using p = kk_packing<W>;
    if (p::PLAIN) return make_uint2(0, 0);
    const uint32_t at = block + p::SCALES_AT + o * p::SCALE_BYTES;
    if (p::SCALE_BYTES == 4) return kk_lds64(at);
    const uint32_t both = kk_lds32(at);
    return make_uint2(both, both >> 16);
}

/* One value, from global memory, where speed does not matter.  o, k: output and input. */
template <int W>
__device__ __forceinline__ float kk_packed_value(const uint8_t *block, uint32_t o, uint32_t k) {
    using p = kk_packing<W>;
    const uint32_t lane = o % 8 * 4 + k % 32 / 8, pair = k % 8 / 2, odd = k % 2;
    if (p::PLAIN) return kk_dfloat(((const uint16_t *)block)[lane * 8 + k % 8]);
    int code;
    if (p::BITS == 8) {
        const uint8_t *word = block + lane * 8 + k % 8 / 4 * 4;
        code = word[odd * 2 + pair % 2];
        if (!p::AFFINE) code = (int8_t)code;
    } else {
        code = ((const uint32_t *)block)[lane] >> (16 * odd + 4 * pair) & 15;
        if (p::BITS == 5) code |= (block[p::HIGH_AT + lane] >> (4 * odd + pair) & 1) << 4;
        if (p::BITS == 6)
            code |= (((const uint16_t *)(block + p::HIGH_AT))[lane] >> (8 * odd + 2 * pair) & 3)
                    << 4;
        if (!p::AFFINE) code -= p::BITS == 4 ? 8 : p::BITS == 5 ? 16 : 32;
    }
    const uint8_t *at = block + p::SCALES_AT + o % 8 * p::SCALE_BYTES;
    const float d = __half2float(__ushort_as_half(*(const uint16_t *)at));
    if (p::SCALE_BYTES == 2) return __fmul_rn(d, (float)code);
    const float m = __half2float(__ushort_as_half(((const uint16_t *)at)[1]));
    if (p::HALVES) return __fmul_rn(k % 32 < 16 ? d : m, (float)code);
    return __fmaf_rn(d, (float)code, m);
}

/* ---- products ----------------------------------------------------------------------------- */

__device__ __forceinline__ void kk_mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                       uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/* One K step in bf16: rows g and g + 8 of the activations times a strip's 32 inputs. */
template <bool HIGH>
__device__ __forceinline__ void kk_step(float c[4], const uint4 &w, const uint4 &lo,
                                        const uint4 &hi) {
    kk_mma(c, lo.x, HIGH ? hi.x : 0, lo.y, HIGH ? hi.y : 0, w.x, w.y);
    kk_mma(c, lo.z, HIGH ? hi.z : 0, lo.w, HIGH ? hi.w : 0, w.z, w.w);
}
/* The same of two strips: 16 outputs (M) by eight rows (N). */
__device__ __forceinline__ void kk_step_rows(float c[4], const uint4 &one, const uint4 &two,
                                             const uint4 &x) {
    kk_mma(c, one.x, two.x, one.y, two.y, x.x, x.y);
    kk_mma(c, one.z, two.z, one.w, two.w, x.z, x.w);
}

/* c = a b: kk_mma with a zero accumulator. */
__device__ __forceinline__ void kk_mma_first(float c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                 : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
}

/* c += both products of a step, with 16 outputs (two strips) as M and eight rows as N. */
__device__ __forceinline__ void kk_step_outputs(float t[4], const uint4 &one, const uint4 &two,
                                                const uint4 &x) {
    kk_mma_first(t, one.x, two.x, one.y, two.y, x.x, x.y);
    kk_mma(t, one.z, two.z, one.w, two.w, x.z, x.w);
}
/* The same with 16 rows, lo and hi, as M and the eight outputs of a strip as N. */
__device__ __forceinline__ void kk_step_inputs(float t[4], const uint4 &w, const uint4 &lo,
                                               const uint4 &hi) {
    kk_mma_first(t, lo.x, hi.x, lo.y, hi.y, w.x, w.y);
    kk_mma(t, lo.z, hi.z, lo.w, hi.w, w.z, w.w);
}

/* v where it belongs to the first (or second) 16 inputs of a step, else zeros. */
__device__ __forceinline__ uint4 kk_half_of(const uint4 &v, bool second) {
    const uint32_t keep = (kk_tid() & 2) == (second ? 2 : 0) ? ~0u : 0;
    return make_uint4(v.x & keep, v.y & keep, v.z & keep, v.w & keep);
}

__device__ __forceinline__ void kk_add_scaled(float c[4], const float t[4], float d0, float d1,
                                              float d2, float d3) {
    c[0] = __fmaf_rn(t[0], d0, c[0]);
    c[1] = __fmaf_rn(t[1], d1, c[1]);
    c[2] = __fmaf_rn(t[2], d2, c[2]);
    c[3] = __fmaf_rn(t[3], d3, c[3]);
}

template <bool ONE>
__device__ __forceinline__ void kk_add_outputs(float c[4], const float t[4], float p, float q) {
    c[0] = __fmaf_rn(t[0], p, c[0]);
    c[2] = __fmaf_rn(t[2], q, c[2]);
    if (ONE) return;
    c[1] = __fmaf_rn(t[1], p, c[1]);
    c[3] = __fmaf_rn(t[3], q, c[3]);
}

/* A step of two strips, outputs as M: c[0], c[1] are of strip one, whose scales are p, and c[2],
 * c[3] of strip two, q.  ONE: there is one row, and c[1], c[3] are not wanted. */
template <int W, bool ONE>
__device__ __forceinline__ void kk_packed_rows(float c[4], const uint4 &one, const uint4 &two,
                                               const kk_scales &p, const kk_scales &q,
                                               const uint4 &x) {
    using pack = kk_packing<W>;
    float t[4];
    if constexpr (pack::PLAIN) {
        kk_step_rows(c, one, two, x);
    } else if constexpr (pack::HALVES) {
        kk_step_outputs(t, kk_half_of(one, false), kk_half_of(two, false), x);
        kk_add_outputs<ONE>(c, t, p.d, q.d);
        kk_step_outputs(t, kk_half_of(one, true), kk_half_of(two, true), x);
        kk_add_outputs<ONE>(c, t, p.m, q.m);
    } else {
        kk_step_outputs(t, one, two, x);
        kk_add_outputs<ONE>(c, t, p.d, q.d);
        if constexpr (pack::AFFINE) {
            const uint32_t one2 = 0x3f803f80u;
            const uint4 ones = make_uint4(one2, one2, one2, one2);
            kk_step_outputs(t, ones, ones, x);
            kk_add_outputs<ONE>(c, t, p.m, q.m);
        }
    }
}

/* A step of one strip, outputs as N: c[0], c[2] are of an output whose scales are p, c[1], c[3] of
 * the next one, q. */
template <int W, bool HIGH>
__device__ __forceinline__ void kk_packed_strip(float c[4], const uint4 &w, const kk_scales &p,
                                                const kk_scales &q, const uint4 &lo,
                                                const uint4 &hi) {
    using pack = kk_packing<W>;
    float t[4];
    if constexpr (pack::PLAIN) {
        kk_step<HIGH>(c, w, lo, hi);
    } else if constexpr (pack::HALVES) {
        kk_step_inputs(t, kk_half_of(w, false), lo, hi);
        kk_add_scaled(c, t, p.d, q.d, p.d, q.d);
        kk_step_inputs(t, kk_half_of(w, true), lo, hi);
        kk_add_scaled(c, t, p.m, q.m, p.m, q.m);
    } else {
        kk_step_inputs(t, w, lo, hi);
        kk_add_scaled(c, t, p.d, q.d, p.d, q.d);
        if constexpr (pack::AFFINE) {
            const uint32_t one2 = 0x3f803f80u;
            kk_step_inputs(t, make_uint4(one2, one2, one2, one2), lo, hi);
            kk_add_scaled(c, t, p.m, q.m, p.m, q.m);
        }
    }
}

/* Calls f(kk_packing<W>()) for an encoding that only run time knows. */
template <class F> __device__ __forceinline__ void kk_with_packing(int w, F f) {
    switch (w) {
    case KK_W_BF16: f(kk_packing<KK_W_BF16>()); break;
    case KK_W_I4: f(kk_packing<KK_W_I4>()); break;
    case KK_W_I5: f(kk_packing<KK_W_I5>()); break;
    case KK_W_I6: f(kk_packing<KK_W_I6>()); break;
    case KK_W_I8: f(kk_packing<KK_W_I8>()); break;
    case KK_W_A4: f(kk_packing<KK_W_A4>()); break;
    case KK_W_A5: f(kk_packing<KK_W_A5>()); break;
    default: f(kk_packing<KK_W_A8>()); break;
    }
}

/* Value k of a row of planes, one after the other: input k % (32 wrap) of output o of matrix m. */
__device__ __forceinline__ float kk_weight_value(const kk_cu_weight &w, int64_t m, int64_t o,
                                                 int k) {
    const size_t steps = (size_t)w.wrap * (size_t)w.planes;
    const size_t strip = (size_t)m * (size_t)w.strips + (size_t)(o / 8);
    const uint8_t *block =
        (const uint8_t *)w.data + (strip * steps + (size_t)(k / KK_STEP)) * (size_t)w.words * 16;
    float v = 0;
    kk_with_packing(w.encoding, [&](auto p) {
        v = kk_packed_value<decltype(p)::ENCODING>(block, (uint32_t)(o % 8), (uint32_t)k);
    });
    return v;
}

#endif
