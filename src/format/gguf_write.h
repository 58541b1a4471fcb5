/* gguf_write.h - writes GGUF v3, streaming: keys first, then every tensor's description, then
 * their data in that order.  The file appears whole or not at all.
 *
 * Keys and descriptions are gathered in memory; running out of it is remembered and told by
 * kk_gguf_writer_begin, so that a list of keys needs no check per line. */
#ifndef KK_FORMAT_GGUF_WRITE_H
#define KK_FORMAT_GGUF_WRITE_H

#include "core/writer.h"
#include "format/gguf.h"

typedef struct kk_gguf_writer kk_gguf_writer;

/* Replaces a file of that name. */
kk_status kk_gguf_writer_open(kk_gguf_writer **out, const char *path, kk_err *err);
/* to is borrowed until commit or abort, and still the caller's to close. */
kk_status kk_gguf_writer_new(kk_gguf_writer **out, kk_writer *to, kk_err *err);
void kk_gguf_writer_abort(kk_gguf_writer *w); /* frees w; NULL is fine */

void kk_gguf_put_u32(kk_gguf_writer *w, const char *key, uint32_t v);
void kk_gguf_put_f32(kk_gguf_writer *w, const char *key, float v);
void kk_gguf_put_bool(kk_gguf_writer *w, const char *key, bool v);
void kk_gguf_put_str(kk_gguf_writer *w, const char *key, const char *text, size_t len);
/* An array of n elements, whose bytes or strings follow by the two calls below. */
void kk_gguf_put_array(kk_gguf_writer *w, const char *key, kk_gguf_type elem, uint64_t n);
void kk_gguf_put_bytes(kk_gguf_writer *w, const void *data, size_t len);
void kk_gguf_put_element(kk_gguf_writer *w, const char *text, size_t len);

/* A tensor, dims outermost first. */
void kk_gguf_put_tensor(kk_gguf_writer *w, const char *name, kk_dtype type, int32_t n_dims,
                        const int64_t *dims);

/* Writes the header; from here on only data is put. */
kk_status kk_gguf_writer_begin(kk_gguf_writer *w, kk_err *err);
/* The next bytes of tensor data.  A tensor's last call must end exactly where it does. */
kk_status kk_gguf_writer_data(kk_gguf_writer *w, const void *data, size_t len, kk_err *err);
/* All tensors are complete: syncs, renames, and frees w either way. */
kk_status kk_gguf_writer_commit(kk_gguf_writer *w, kk_err *err);

#endif
