/* weigh_avx2.c - weights of logits for avx2; see weigh_body.h. */
#define KK_WEIGHER kk_weigher_avx2
#define KK_WEIGHER_NAME "avx2"
#include "backend/weigh_body.h"
