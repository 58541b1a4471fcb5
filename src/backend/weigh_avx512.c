/* weigh_avx512.c - weights of logits for avx512; see weigh_body.h. */
#define KK_WEIGHER kk_weigher_avx512
#define KK_WEIGHER_NAME "avx512"
#include "backend/weigh_body.h"
