/* wgmma.cuh - sm_90a's products of a warpgroup: 64 outputs, from registers, by 16 P rows in shared
 * memory, 16 inputs at a time.
 *
 * A chain of m64nNk16 products has the bits of the same chain of m16n8k16 products of arith.cuh's
 * rule, whichever of outputs and rows is M, so that prompts may use them.
 *
 *    a[4]  of warp w, lane l: outputs 16 w + l / 4 and + 8, inputs 2 (l % 4) .. + 1 and + 8:
 *          (o, low) (o + 8, low) (o, high) (o + 8, high)
 *    rows  K-major: 128 bytes (64 inputs) a row, 16-byte chunks XORed with the row's number modulo
 *          8, 8 rows in 1 KB; the tile begins at a multiple of 1 KB
 *    d[P][8]  of 16 rows: (o, r) (o, r + 1) (o + 8, r) (o + 8, r + 1), r = 2 (l % 4), then r + 8 */
#ifndef KK_CUDA_WGMMA_CUH
#define KK_CUDA_WGMMA_CUH

#include <stdint.h>

/* What describes rows at a shared address: the address, 1 KB from 8 rows to the next, chunks
 * swizzled in 128 bytes. */
__device__ __forceinline__ uint64_t kk_wgmma_rows(uint32_t at) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 |
           (uint64_t)((at & 0x3ffff) >> 4);
}

/* Before the first product, and after registers of a product were written. */
__device__ __forceinline__ void kk_wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void kk_wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most N groups are in flight. */
template <int N> __device__ __forceinline__ void kk_wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Keeps the compiler from moving uses of sums across this place. */
template <int P> __device__ __forceinline__ void kk_wgmma_hold(float (&d)[P][8]) {
#pragma unroll
    for (int i = 0; i < P; i++)
#pragma unroll
        for (int k = 0; k < 8; k++) asm volatile("" : "+f"(d[i][k])::"memory");
}

/* The registers of 1 to 11 fragments of 16 rows, as text and as operands. */
#define KK_R1 "%0,%1,%2,%3,%4,%5,%6,%7"
#define KK_R2 KK_R1 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define KK_R3 KK_R2 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define KK_R4 KK_R3 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define KK_R5 KK_R4 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define KK_R6 KK_R5 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define KK_R7 KK_R6 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define KK_R8 KK_R7 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define KK_R9 KK_R8 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define KK_R10 KK_R9 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define KK_R11 KK_R10 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define KK_D(i)                                                                                    \
    "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), "+f"(d[i][4]), "+f"(d[i][5]),      \
        "+f"(d[i][6]), "+f"(d[i][7])
#define KK_D1 KK_D(0)
#define KK_D2 KK_D1, KK_D(1)
#define KK_D3 KK_D2, KK_D(2)
#define KK_D4 KK_D3, KK_D(3)
#define KK_D5 KK_D4, KK_D(4)
#define KK_D6 KK_D5, KK_D(5)
#define KK_D7 KK_D6, KK_D(6)
#define KK_D8 KK_D7, KK_D(7)
#define KK_D9 KK_D8, KK_D(8)
#define KK_D10 KK_D9, KK_D(9)
#define KK_D11 KK_D10, KK_D(10)

/* d = a rows, plus d where add is not 0.  Asynchronous: a must not be written before it has
 * ended. */
template <int P> struct kk_wgmma;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define KK_WGMMA_ASM(R, D, N, A0, A1, A2, A3, ROWS, ADD)                                           \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, " ADD ", 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" R "}, {" A0 ", " A1   \
                 ", " A2 ", " A3 "}, " ROWS ", p, 1, 1, 0;\n}"                                     \
                 : D                                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows), "r"(add))
#else
#define KK_WGMMA_ASM(R, D, ...) (void)d, (void)a, (void)rows, (void)add
#endif
#define KK_WGMMA(P, ...)                                                                           \
    template <> struct kk_wgmma<P> {                                                               \
        static __device__ __forceinline__ void run(float (&d)[P][8], const uint32_t (&a)[4],       \
                                                   uint64_t rows, int add) {                       \
            KK_WGMMA_ASM(KK_R##P, KK_D##P, __VA_ARGS__);                                           \
        }                                                                                          \
    }
KK_WGMMA(4, "64", "%32", "%33", "%34", "%35", "%36", "%37");
KK_WGMMA(6, "96", "%48", "%49", "%50", "%51", "%52", "%53");
KK_WGMMA(8, "128", "%64", "%65", "%66", "%67", "%68", "%69");
KK_WGMMA(11, "176", "%88", "%89", "%90", "%91", "%92", "%93");

#undef KK_WGMMA
#undef KK_WGMMA_ASM

#endif
