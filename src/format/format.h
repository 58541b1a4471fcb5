/* format.h - what the files of this folder share and nobody else needs: the inside of a
 * checkpoint (a drafter and a projection hold one too, with inventories of their own), the last
 * step of every configuration reader, and the list of tensors a configuration calls for. */
#ifndef KK_FORMAT_FORMAT_H
#define KK_FORMAT_FORMAT_H

#include "format/checkpoint.h"
#include "format/drafter.h"
#include "format/gguf_write.h"
#include "format/projection.h"
#include "format/safetensors.h"

/* ---- configuration ---------------------------------------------------------------------- */

/* Called with every field read and, for each layer, kind, head_dim, n_kv_head, ffn and k_eq_v
 * set.  Checks all ranges, resolves shared K/V (the last n_shared layers read an earlier one's)
 * and doubles the MLP of those layers where double_wide says so. */
kk_status kk_config_finish(kk_config *c, int32_t n_shared, bool double_wide, kk_err *err);
/* Adds a stop id once; ids at or past the vocabulary can never be chosen and are left out. */
kk_status kk_config_add_stop(kk_config *c, int64_t id, kk_err *err);

/* Whether a config.json, or that of a folder, is a drafter's; one that is no JSON is not. */
kk_status kk_drafter_is_config(const char *json, size_t len, bool *is, kk_err *err);
kk_status kk_drafter_is_folder(const char *dir, bool *is, kk_err *err);
/* n tapped layers of a verifier of n_layer, spread as the published drafters have them. */
void kk_drafter_spread_taps(kk_drafter_config *c, int32_t n, int32_t n_layer);

/* Whether a projection's configuration agrees with itself; if not, the first reason, with the
 * names of projection.json. */
kk_status kk_projection_config_valid(const kk_projection_config *c, kk_status bad, kk_err *err);

/* ---- inventory ----------------------------------------------------------------------------- */

/* What a tensor is for, which decides how it is stored and how much of it one token reads. */
typedef enum {
    KK_ROLE_EMBED,     /* the token table, read whole as the output head */
    KK_ROLE_MATRIX,    /* read whole */
    KK_ROLE_EXPERTS,   /* [experts, out, in]: a token reads the chosen ones */
    KK_ROLE_PLE_TABLE, /* a token reads one row */
    KK_ROLE_ROUTER,    /* small matrix, kept in float */
    KK_ROLE_VECTOR,    /* norms and scales, kept in float */
} kk_role;

typedef struct {
    char name[KK_MAX_NAME];
    kk_role role;
    int32_t n_dims;
    int64_t dims[3];
} kk_inventory_item;

typedef struct {
    kk_inventory_item *items;
    size_t n, cap;
} kk_inventory;

/* Every tensor a model of this configuration reads, in the order a file would hold them. */
kk_status kk_inventory_make(kk_inventory *out, const kk_config *c, kk_err *err);
/* The same of a drafter, and of a projection. */
kk_status kk_inventory_make_drafter(kk_inventory *out, const kk_drafter_config *c, kk_err *err);
kk_status kk_inventory_make_projection(kk_inventory *out, const kk_projection_config *c,
                                       kk_err *err);
void kk_inventory_free(kk_inventory *l); /* zero value is fine */
int64_t kk_inventory_values(const kk_inventory_item *item);
/* The name of one half ("gate_proj" or "up_proj") of an experts' gate_up_proj, which older files
 * keep apart; false: the item is no such tensor. */
bool kk_inventory_split(const kk_inventory_item *item, const char *half, char out[KK_MAX_NAME]);

/* ---- checkpoint ------------------------------------------------------------------------- */

typedef struct {
    kk_map map;
    char *path;
    kk_safetensors list; /* empty for GGUF */
} kk_checkpoint_file;

struct kk_checkpoint {
    kk_config config;
    const char *format;
    char *path;
    kk_checkpoint_file *files;
    size_t n_files;
    kk_gguf gguf;
    char *names;        /* names of tensors that are not in a file's list */
    kk_tensor *tensors; /* sorted by name */
    size_t n_tensors;
    kk_inventory inventory;   /* what the configuration calls for */
    kk_mem *mem;              /* synthetic: where each tensor's pages were taken */
    kk_mem_category category; /* category of all its memory */
    kk_span packed;           /* tensors rounded to a smaller type, in one block; empty: none */
    kk_mem *packed_mem;       /* where the packed weights are counted */
};

/* Opens a Hugging Face folder or a GGUF file into *c, which the caller closes on failure. */
kk_status kk_hf_open(kk_checkpoint *c, const char *dir, kk_err *err);
kk_status kk_gguf_open(kk_checkpoint *c, const char *path, kk_err *err);
/* The parts of opening a GGUF file that do not depend on what the model is: maps and parses it;
 * lists its tensors by the names that to_hf gives them, and those it does not know by their own
 * where others are wanted, too. */
kk_status kk_gguf_file(kk_checkpoint *c, const char *path, kk_err *err);
kk_status kk_gguf_list(kk_checkpoint *c, bool (*to_hf)(const char *gguf, char out[KK_MAX_NAME]),
                       bool others, kk_err *err);
/* The parts of opening a folder that do not depend on what the model is: reads a JSON file of it
 * (free *text); maps model.safetensors or its shards, or the one file of that name; lists their
 * tensors whose names begin with prefix, without it. */
kk_status kk_hf_text(const char *dir, const char *name, char **text, size_t *len, kk_err *err);
kk_status kk_hf_files(kk_checkpoint *c, const char *dir, kk_err *err);
kk_status kk_hf_file(kk_checkpoint *c, const char *dir, const char *name, kk_err *err);
kk_status kk_hf_list(kk_checkpoint *c, const char *prefix, kk_err *err);
/* Whether the listed tensors are of one of MLX's converters; and, where they are, makes of them
 * what the model knows: one tensor of codes, scales and biases, and experts by their usual names.
 * prefix: what was taken off their names; config: the text of config.json. */
bool kk_mlx_written(const kk_checkpoint *c);
kk_status kk_mlx_arrange(kk_checkpoint *c, const char *prefix, const char *config, size_t len,
                         kk_err *err);
/* Sorts the tensors and refuses a name used twice. */
kk_status kk_checkpoint_sort(kk_checkpoint *c, kk_err *err);
/* The same, then checks them against the inventory. */
kk_status kk_checkpoint_settle(kk_checkpoint *c, kk_err *err);
/* Refuses a tensor that the inventory does not have, as a sign of another architecture; what: "a
 * drafter". */
kk_status kk_checkpoint_only(const kk_checkpoint *c, const char *what, kk_err *err);
/* Rounds its matrices whose names begin with prefix to a smaller type, in one block counted in mem
 * under its category; those packed already, or whose rows do not fill blocks, stay as they are.
 * Once: a second call does nothing.  On failure it is as it was. */
kk_status kk_checkpoint_pack(kk_checkpoint *c, const char *prefix, const kk_drafter_packing *how,
                             kk_mem *mem, kk_err *err);
/* A copy of a matrix rounded to a smaller type, its bytes taken from mem, to be given back there;
 * no bytes: one that is packed already or whose rows do not fill blocks, which needs no copy. */
kk_status kk_tensor_pack(kk_tensor *out, const kk_tensor *t, const kk_drafter_packing *how,
                         kk_mem_category category, kk_mem *mem, kk_err *err);
kk_status kk_checkpoint_apply(const kk_checkpoint *c, const kk_checkpoint_opts *opts, kk_err *err);
/* Makes every tensor of c's inventory of random numbers, matrices of this type, and settles c.
 * mix: some of them are q6_k. */
kk_status kk_checkpoint_random(kk_checkpoint *c, kk_dtype type, bool mix, kk_err *err);
/* A type weights may have, by its name. */
kk_status kk_weight_type(const char *name, kk_dtype *out, kk_err *err);

/* ---- GGUF header ------------------------------------------------------------------------ */

/* The keys of a model and, from the tokenizer.json and chat template in dir, of its tokenizer
 * ("none" where there is none), as the public converter writes them. */
kk_status kk_gguf_put_model(kk_gguf_writer *w, const kk_config *c, kk_dtype type, const char *dir,
                            kk_err *err);
kk_status kk_gguf_put_tokenizer(kk_gguf_writer *w, const kk_config *c, const char *dir,
                                kk_err *err);
/* The keys that every model has, and all of a drafter, which has no tokenizer of its own. */
void kk_gguf_put_general(kk_gguf_writer *w, const char *arch, kk_dtype type, const char *dir);
void kk_gguf_put_drafter(kk_gguf_writer *w, const kk_drafter_config *c, kk_dtype type,
                         const char *dir);

#endif
