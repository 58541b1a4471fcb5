/* checkpoint.h - a model on disk, whatever its format: a configuration, tensors by their
 * Hugging Face names without the "model." or "model.language_model." prefix, and a tokenizer.
 *
 * "embed_tokens.weight", "layers.3.self_attn.q_proj.weight", "layers.3.experts.gate_up_proj".
 * GGUF names are translated (model.md D.1).  Old GGUF files with separate expert gate and up
 * list "layers.N.experts.gate_proj" and "...up_proj" instead, and so do MLX's folders.  Files stay
 * mapped, not copied. */
#ifndef KK_FORMAT_CHECKPOINT_H
#define KK_FORMAT_CHECKPOINT_H

#include "core/alloc.h"
#include "core/file.h"
#include "format/config.h"
#include "format/tensor.h"

typedef struct kk_checkpoint kk_checkpoint;

typedef struct {
    bool mlock, huge_pages;
} kk_checkpoint_opts;

/* path: a Hugging Face folder or a GGUF file.  opts may be NULL. */
kk_status kk_checkpoint_open(kk_checkpoint **out, const char *path, const kk_checkpoint_opts *opts,
                             kk_err *err);
/* Real shapes, random weights, no file: "26b-a4b:q4_0" or "26b-a4b:q4_0:12".  Every tensor has
 * its own pages, counted in mem under weights.verifier.  mem NULL: shapes and sizes alone, to be
 * asked about and never computed with. */
kk_status kk_checkpoint_synthetic(kk_checkpoint **out, const char *spec, kk_mem *mem, kk_err *err);
void kk_checkpoint_close(kk_checkpoint *c); /* NULL is fine */

const kk_config *kk_checkpoint_config(const kk_checkpoint *c);
const char *
kk_checkpoint_format(const kk_checkpoint *c); /* "safetensors", "mlx", "gguf", "synthetic" */
const char *kk_checkpoint_path(const kk_checkpoint *c);
size_t kk_checkpoint_count(const kk_checkpoint *c);
const kk_tensor *kk_checkpoint_at(const kk_checkpoint *c, size_t i);
const kk_tensor *kk_checkpoint_find(const kk_checkpoint *c, const char *name); /* NULL: absent */
/* Finds a tensor that must exist with exactly these dims (outermost first), or fails with a
 * sentence that names it.  A [1] and a scalar are the same. */
kk_status kk_checkpoint_need(const kk_checkpoint *c, const char *name, int32_t n_dims,
                             const int64_t *dims, const kk_tensor **out, kk_err *err);
/* Fills info from the shapes and stored types. */
/* Bytes of weights that are read to decode a token, where matrices take so many (NULL: as in the
 * file). */
int64_t kk_checkpoint_token_bytes(const kk_checkpoint *c,
                                  int64_t (*stored)(kk_dtype type, int64_t values));
void kk_checkpoint_info(const kk_checkpoint *c, kk_model_info *info);

#endif
