/* cuda_pack.cu - quantised weights as files hold them, rearranged into packed strips (packed.cuh).
 *
 *    pack_kernel: a thread per row and K step; it reads 32 codes with their scales as the file has
 *    them and writes a row's part of the step's block: four lanes' codes and one output's scales
 *
 *    q4_0 I4 | q5_0 I5 | q8_0 I8 | q5_1 A5 | q4_k A4 | q5_k A5 | q6_k I6 | MLX A4, A8
 *
 * Codes stay as they are.  Scales become f16: those of q4_0, q5_0, q5_1 and q8_0 are f16 already.
 * The product of a super-block's scale and a group's is rounded, which adds an error no larger than
 * that of the super-block's scale, an f16 itself.  MLX's bf16 scales are exact in f16's normal
 * range; smaller ones are off by a small part of the matrix's largest (cuda_weights.c sees to
 * that). */
#include "core/dtype.h"
#include "launch.cuh"
#include "packed.cuh"

enum { THREADS = 256 };

/* A K step of one row: codes without their encoding's offset, and the two scales of its part. */
struct step_codes {
    int code[32];
    float d, m;
};

__device__ __forceinline__ uint32_t le16(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8; }
__device__ __forceinline__ uint32_t le32(const uint8_t *p) { return le16(p) | le16(p + 2) << 16; }
__device__ __forceinline__ float half_at(const uint8_t *p) {
    return __half2float(__ushort_as_half((uint16_t)le16(p)));
}

/* Byte i of 16 holds codes i and i + 16; bits: the fifth bits of all 32. */
__device__ __forceinline__ void nibbles(step_codes &s, const uint8_t *q, uint32_t bits) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        s.code[i] = (q[i] & 15) | (int)(bits >> i & 1) << 4;
        s.code[i + 16] = q[i] >> 4 | (int)(bits >> (i + 16) & 1) << 4;
    }
}

/* The 6-bit scale and minimum of run j of a super-block (core/dtype.c has the layout). */
__device__ __forceinline__ void run_scales(step_codes &s, const uint8_t *block, int j) {
    const uint8_t *k = block + 4;
    int scale = k[j & 3] & 63, min = k[(j & 3) + 4] & 63;
    if (j >= 4) {
        scale = (k[j + 4] & 15) | (k[j - 4] >> 6) << 4;
        min = k[j + 4] >> 4 | (k[j] >> 6) << 4;
    }
    s.d = __fmul_rn(half_at(block), (float)scale);
    s.m = -__fmul_rn(half_at(block + 2), (float)min);
}

/* Run j of a super-block of q4_k (high NULL) or q5_k. */
__device__ __forceinline__ void k_run(step_codes &s, const uint8_t *block, const uint8_t *high,
                                      const uint8_t *low, int j) {
    const uint8_t *q = low + j / 2 * 32;
    run_scales(s, block, j);
    for (int i = 0; i < 32; i++) {
        s.code[i] = j % 2 ? q[i] >> 4 : q[i] & 15;
        if (high) s.code[i] |= (high[i] >> j & 1) << 4;
    }
}

/* Run j of 32 of a super-block of q6_k: scales of its first 16 values and of the others. */
__device__ __forceinline__ void q6_run(step_codes &s, const uint8_t *block, int j) {
    const uint8_t *low = block + j / 4 * 64 + j % 2 * 32, *high = block + 128 + j / 4 * 32;
    const int run = j % 4;
    for (int i = 0; i < 32; i++)
        s.code[i] = (run < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> (2 * run) & 3) << 4;
    const float d = half_at(block + 208);
    s.d = __fmul_rn(d, (float)(int8_t)block[192 + 2 * j]);
    s.m = __fmul_rn(d, (float)(int8_t)block[192 + 2 * j + 1]);
}

__device__ __forceinline__ float plane_value(const uint8_t *plane, int dtype, size_t i) {
    if (dtype == KK_F32) return __uint_as_float(le32(plane + 4 * i));
    if (dtype == KK_F16) return half_at(plane + 2 * i);
    return kk_dfloat((uint16_t)le16(plane + 2 * i));
}

/* MLX: step k of a row; its scales and biases lie in planes. */
__device__ __forceinline__ void affine_step(step_codes &s, const kk_cu_pack &a, size_t row, int k) {
    const int group = a.group, bits = a.dtype == KK_MLX4_32 || a.dtype == KK_MLX4_64 ? 4 : 8;
    const size_t n_in = (size_t)a.w.n_in, at = (row * n_in + (size_t)k * 32) / (size_t)group;
    const uint8_t *q = (const uint8_t *)a.from + (row * n_in + (size_t)k * 32) / 8 * (size_t)bits;
    s.d = plane_value((const uint8_t *)a.scales, a.plane_dtype, at);
    s.m = plane_value((const uint8_t *)a.biases, a.plane_dtype, at);
    for (int i = 0; i < 32; i++) s.code[i] = bits == 4 ? q[i / 2] >> (i % 2 * 4) & 15 : q[i];
}

__device__ __forceinline__ void read_step(step_codes &s, const kk_cu_pack &a, size_t row, int k) {
    const uint8_t *from = (const uint8_t *)a.from + row * a.row_bytes;
    const uint8_t *b = from + (size_t)k * a.block_bytes;           /* blocks of 32 */
    const uint8_t *super = from + (size_t)(k / 8) * a.block_bytes; /* of 256 */
    s.m = 0;
    switch (a.dtype) {
    case KK_Q4_0:
        s.d = half_at(b);
        nibbles(s, b + 2, 0);
        break;
    case KK_Q5_0:
        s.d = half_at(b);
        nibbles(s, b + 6, le32(b + 2));
        break;
    case KK_Q5_1:
        s.d = half_at(b);
        s.m = half_at(b + 2);
        nibbles(s, b + 8, le32(b + 4));
        break;
    case KK_Q8_0:
        s.d = half_at(b);
        for (int i = 0; i < 32; i++) s.code[i] = b[2 + i];
        break;
    case KK_Q4_K: k_run(s, super, NULL, super + 16, k % 8); break;
    case KK_Q5_K: k_run(s, super, super + 16, super + 48, k % 8); break;
    case KK_Q6_K: q6_run(s, super, k % 8); break;
    default: affine_step(s, a, row, k); break;
    }
}

/* Writes the codes 8 j .. 8 j + 7 of a step as lane `lane` of its block reads them. */
template <int BITS>
__device__ __forceinline__ void write_codes(uint8_t *block, int lane, const int *c) {
    uint32_t low = 0, more = 0;
    if constexpr (BITS == 8) {
        low = (uint32_t)(c[0] & 255) | (uint32_t)(c[1] & 255) << 16 | (uint32_t)(c[2] & 255) << 8 |
              (uint32_t)(c[3] & 255) << 24;
        more = (uint32_t)(c[4] & 255) | (uint32_t)(c[5] & 255) << 16 | (uint32_t)(c[6] & 255) << 8 |
               (uint32_t)(c[7] & 255) << 24;
        ((uint2 *)block)[lane] = make_uint2(low, more);
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            low |= (uint32_t)(c[2 * k] & 15) << 4 * k | (uint32_t)(c[2 * k + 1] & 15)
                                                            << (16 + 4 * k);
            if (BITS == 5)
                more |= (uint32_t)(c[2 * k] >> 4) << k | (uint32_t)(c[2 * k + 1] >> 4) << (4 + k);
            if (BITS == 6)
                more |= (uint32_t)(c[2 * k] >> 4) << 2 * k | (uint32_t)(c[2 * k + 1] >> 4)
                                                                 << (8 + 2 * k);
        }
        ((uint32_t *)block)[lane] = low;
        if (BITS == 5) block[128 + lane] = (uint8_t)more;
        if (BITS == 6) ((uint16_t *)(block + 128))[lane] = (uint16_t)more;
    }
}

/* The nearest f16.  A product of two scales beyond its range is in no file that was made from
 * weights; it must not become infinite, which the CPU's is not. */
__device__ __forceinline__ uint16_t half_bits(float v) {
    return __half_as_ushort(__float2half_rn(fminf(fmaxf(v, -65504.0f), 65504.0f)));
}

template <int W>
__device__ __forceinline__ void write_step(uint8_t *block, int o, const step_codes &s) {
    using p = kk_packing<W>;
#pragma unroll
    for (int j = 0; j < 4; j++) write_codes<p::BITS>(block, o % 8 * 4 + j, s.code + 8 * j);
    uint16_t *scale = (uint16_t *)(block + p::SCALES_AT + o % 8 * p::SCALE_BYTES);
    scale[0] = half_bits(s.d);
    if (p::SCALE_BYTES == 4) scale[1] = half_bits(s.m);
}

template <int W>
__global__ void __launch_bounds__(THREADS) pack_kernel(const __grid_constant__ kk_cu_pack a) {
    const size_t steps = (size_t)a.w.n_in / KK_STEP, n = (size_t)a.n_rows * steps;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS) {
        const size_t r = i / steps, row = (size_t)a.row + r;
        const int k = (int)(i % steps), o = (int)(row % (size_t)a.w.n_out);
        const size_t strip = row / (size_t)a.w.n_out * (size_t)a.w.strips + (size_t)(o / 8);
        step_codes s;
        read_step(s, a, r, k);
        write_step<W>((uint8_t *)a.to +
                          (strip * (size_t)a.w.wrap + (size_t)k) * (size_t)kk_packing<W>::BYTES,
                      o, s);
    }
}

cudaError_t kk_cu_run_pack(kk_cu_at at, const kk_cu_pack *a) {
    const unsigned blocks = kk_blocks((size_t)a->n_rows * (size_t)a->w.n_in / KK_STEP, THREADS);
    void (*const kernels[KK_W_ENCODINGS])(kk_cu_pack) = {NULL,
                                                         pack_kernel<KK_W_I4>,
                                                         pack_kernel<KK_W_I5>,
                                                         pack_kernel<KK_W_I6>,
                                                         pack_kernel<KK_W_I8>,
                                                         pack_kernel<KK_W_A4>,
                                                         pack_kernel<KK_W_A5>,
                                                         pack_kernel<KK_W_A8>};
    if (!kernels[a->w.encoding]) return cudaErrorInvalidValue;
    return kk_launch(at, kernels[a->w.encoding], *a, blocks, THREADS, 0);
}
