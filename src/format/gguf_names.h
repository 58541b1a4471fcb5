/* gguf_names.h - the two names of every tensor: Hugging Face's and GGUF's.  A model and a drafter
 * call some of theirs differently. */
#ifndef KK_FORMAT_GGUF_NAMES_H
#define KK_FORMAT_GGUF_NAMES_H

#include <stdbool.h>

#include "format/tensor.h"

/* "blk.3.attn_q.weight" to "layers.3.self_attn.q_proj.weight" and back; false: no such name. */
bool kk_gguf_name_to_hf(const char *gguf, char out[KK_MAX_NAME]);
bool kk_gguf_name_from_hf(const char *hf, char out[KK_MAX_NAME]);
/* The same of a drafter's: "blk.3.ffn_norm.weight" is
 * "layers.3.post_attention_layernorm.weight". */
bool kk_gguf_drafter_name_to_hf(const char *gguf, char out[KK_MAX_NAME]);
bool kk_gguf_drafter_name_from_hf(const char *hf, char out[KK_MAX_NAME]);

#endif
