/* quantize_test.c - a folder becomes a GGUF file that means the same model, whole or not at all.
 * ctest: threads (rows are converted by several) */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "format/tokenizer.h"
#include "support/model_folder.h"

/* ---- a folder and where its GGUF goes --------------------------------------------------- */

typedef struct {
    char in[300], out[300];
} places;

static places make_places(scratch *s) {
    places p;
    snprintf(p.in, sizeof p.in, "%s/in", s->dir);
    snprintf(p.out, sizeof p.out, "%s/out.gguf", s->dir);
    mkdir(p.in, 0700);
    return p;
}

static void quantized(const places *p, const char *type) {
    kk_err err = {0};
    if (kk_quantize(p->in, p->out, type, NULL, NULL, &err) != KK_OK) fail_msg("%s", err.msg);
}

static kk_checkpoint *opened(const char *path) {
    kk_checkpoint *c;
    kk_err err = {0};
    if (kk_checkpoint_open(&c, path, NULL, &err) != KK_OK) fail_msg("%s", err.msg);
    return c;
}

static float *floats_of(const kk_tensor *t) {
    const size_t n = (size_t)kk_tensor_values(t);
    float *y = malloc(n * sizeof *y);
    kk_dequantize(t->dtype, t->data.base, y, n);
    return y;
}

/* The largest error a block of this type may make of values up to 0.05. */
static float bound_of(kk_dtype t) {
    switch (t) {
    case KK_Q8_0: return 0.05f / 127 * 0.5f + 1e-4f;
    case KK_Q4_0: return 0.05f / 8 + 1e-4f;
    case KK_F16: return 0.05f * 0x1p-11f;
    default: return 0;
    }
}

static void same_tensor(const kk_tensor *was, const kk_tensor *is) {
    const int64_t n = kk_tensor_values(was);
    float *a = floats_of(was), *b = floats_of(is);
    assert_int_equal(kk_tensor_values(is), n);
    for (int64_t i = 0; i < n; i++)
        if (fabsf(a[i] - b[i]) > bound_of(is->dtype))
            fail_msg("%s[%" PRId64 "]: %g became %g", is->name, i, (double)a[i], (double)b[i]);
    free(a);
    free(b);
}

/* ---- meaning ---------------------------------------------------------------------------- */

static kk_dtype expected_type(const kk_inventory_item *item, kk_dtype type) {
    if (item->role == KK_ROLE_VECTOR || item->role == KK_ROLE_ROUTER) return KK_F32;
    const bool fits = item->dims[item->n_dims - 1] % kk_dtype_get(type)->values == 0;
    return fits ? type : KK_BF16; /* the folder's own */
}

static void the_model_is_the_same(void **state) {
    scratch *s = *state;
    static const char *const types[] = {"q8_0", "q4_0", "bf16", "f16"};
    const kk_config configs[] = {small_moe(), small_ple()};
    const places p = make_places(s);
    for (int k = 0; k < 2; k++) {
        model_tensors *m = model_make(&configs[k], "model.", KK_BF16);
        model_write(p.in, m);
        kk_checkpoint *was = opened(p.in);
        for (int t = 0; t < 4; t++) {
            kk_dtype type;
            assert_true(kk_dtype_named(types[t], &type));
            quantized(&p, types[t]);
            kk_checkpoint *is = opened(p.out);
            assert_string_equal(kk_checkpoint_format(is), "gguf");
            assert_memory_equal(kk_checkpoint_config(is), kk_checkpoint_config(was),
                                sizeof(kk_config));
            assert_int_equal(kk_checkpoint_count(is), was->inventory.n);
            for (size_t i = 0; i < was->inventory.n; i++) {
                const kk_inventory_item *item = &was->inventory.items[i];
                const kk_tensor *have = kk_checkpoint_find(is, item->name);
                assert_int_equal(have->dtype, expected_type(item, type));
                same_tensor(kk_checkpoint_find(was, item->name), have);
            }
            kk_checkpoint_close(is);
        }
        kk_checkpoint_close(was);
        model_free(m);
    }
    assert_int_equal(kk_live_blocks(), 0);
    assert_int_equal(scratch_entries(s->dir), 2); /* the folder and the file */
}

/* Float32 folders keep rows that fit no block at 16 bits, and norms to the bit. */
static void float_folders_are_read(void **state) {
    const places p = make_places(*state);
    const kk_config config = small_moe();
    model_tensors *m = model_make(&config, "model.language_model.", KK_F32);
    model_write_shards(p.in, m, 2);
    quantized(&p, "q4_0");
    kk_checkpoint *is = opened(p.out);
    assert_int_equal(kk_checkpoint_find(is, "layers.0.experts.down_proj")->dtype, KK_F16);
    const kk_tensor *norm = kk_checkpoint_find(is, "layers.2.input_layernorm.weight");
    const kk_tensor *was = model_find(m, "layers.2.input_layernorm.weight");
    assert_memory_equal(norm->data.base, was->data.base, was->data.size);
    kk_checkpoint_close(is);
    model_free(m);
}

/* A row's bits are those of the row quantiser, wherever the buffers were cut. */
static void blocks_are_the_quantisers_own(void **state) {
    const places p = make_places(*state);
    kk_config config = small_moe();
    config.vocab = 40000; /* more than one buffer of values */
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    model_write(p.in, m);
    quantized(&p, "q8_0");
    kk_checkpoint *is = opened(p.out);
    const kk_tensor *t = kk_checkpoint_find(is, "embed_tokens.weight");
    const kk_tensor *was = model_find(m, "embed_tokens.weight");
    const size_t n = (size_t)kk_tensor_values(was);
    float *values = floats_of(was);
    uint8_t *packed = malloc(t->data.size);
    kk_quantize_row(KK_Q8_0, values, packed, n);
    assert_memory_equal(packed, t->data.base, t->data.size);
    free(values);
    free(packed);
    kk_checkpoint_close(is);
    model_free(m);
}

static void divisors_say_which_pairs_rotate(void **state) {
    const places p = make_places(*state);
    const kk_config config = small_moe();
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    model_write(p.in, m);
    quantized(&p, "bf16");
    kk_checkpoint *is = opened(p.out);
    const kk_tensor *t = NULL;
    for (size_t i = 0; i < is->gguf.n_tensors; i++)
        if (strcmp(is->gguf.tensors[i].name, "rope_freqs.weight") == 0) t = &is->gguf.tensors[i];
    assert_non_null(t);
    assert_int_equal(kk_tensor_values(t), 16); /* pairs of the full layers' heads of 32 */
    float *f = floats_of(t);
    for (int i = 0; i < 16; i++) assert_true(i < 4 ? f[i] == 1.0f : f[i] == 1e30f);
    free(f);
    kk_checkpoint_close(is);
    model_free(m);
}

/* ---- keys ------------------------------------------------------------------------------- */

/* 320 rows: specials, bytes, letters, two merges, and ids nobody has. */
static void write_tokenizer(const char *dir) {
    char path[400], *text = calloc(1, 65536);
    static const char *const special[] = {
        "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<turn|>", "<|tool_response>", "<|channel>"};
    size_t n = (size_t)sprintf(text, "{\"version\": \"1.0\", \"added_tokens\": [");
    for (int i = 0; i < 8; i++)
        n += (size_t)sprintf(text + n,
                             "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, "
                             "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                             "\"special\": true}",
                             i ? ", " : "", i, special[i]);
    n += (size_t)sprintf(text + n,
                         "], \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": "
                         "\" \"}, \"content\": \"\xe2\x96\x81\"}, \"pre_tokenizer\": {\"type\": "
                         "\"Split\", \"pattern\": {\"String\": \" \"}, \"behavior\": "
                         "\"MergedWithPrevious\", \"invert\": false}, \"post_processor\": null, "
                         "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": "
                         "\"Replace\", \"pattern\": {\"String\": \"\xe2\x96\x81\"}, \"content\": "
                         "\" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}]}, "
                         "\"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", "
                         "\"fuse_unk\": true, \"byte_fallback\": true, \"vocab\": {");
    for (int i = 0; i < 8; i++) n += (size_t)sprintf(text + n, "\"%s\": %d, ", special[i], i);
    for (int b = 0; b < 256; b++) n += (size_t)sprintf(text + n, "\"<0x%02X>\": %d, ", b, 10 + b);
    for (int c = 0; c < 26; c++) n += (size_t)sprintf(text + n, "\"%c\": %d, ", 'a' + c, 266 + c);
    n += (size_t)sprintf(text + n, "\"ab\": 292, \"abc\": 293, \"\xe2\x96\x81\": 294}, "
                                   "\"merges\": [[\"a\", \"b\"], [\"ab\", \"c\"]]}}");
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    scratch_write(path, text, n);
    free(text);
}

static bool string_at(const kk_gguf *g, const char *key, uint64_t i, const char *text) {
    const kk_gguf_kv *kv = kk_gguf_find(g, key);
    kk_span s = {0};
    size_t at = 0;
    if (!kv || i >= kv->n) return false;
    for (uint64_t k = 0; k <= i; k++)
        if (!kk_gguf_array_next_str(kv, &at, &s)) return false;
    return s.size == strlen(text) && memcmp(s.base, text, s.size) == 0;
}

static bool has_int(const kk_gguf *g, const char *key, int64_t want) {
    int64_t v = 0;
    return kk_gguf_int(g, key, &v) && v == want;
}

static bool has_str(const kk_gguf *g, const char *key, const char *want) {
    kk_span s;
    return kk_gguf_str(g, key, &s) && s.size == strlen(want) && memcmp(s.base, want, s.size) == 0;
}

static void the_tokenizer_comes_along(void **state) {
    const places p = make_places(*state);
    kk_config config = small_moe();
    char path[400];
    config.vocab = 320;
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    model_write(p.in, m);
    write_tokenizer(p.in);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", p.in);
    scratch_write(path, "{\"chat_template\": \"{{ old }}\"}", 30);
    quantized(&p, "q8_0");
    kk_checkpoint *c = opened(p.out);
    const kk_gguf *g = &c->gguf;
    assert_true(has_str(g, "tokenizer.ggml.model", "gemma4"));
    assert_true(has_str(g, "tokenizer.chat_template", "{{ old }}"));
    assert_int_equal(kk_gguf_find(g, "tokenizer.ggml.tokens")->n, 320);
    assert_true(string_at(g, "tokenizer.ggml.tokens", 266, "a"));
    assert_true(string_at(g, "tokenizer.ggml.tokens", 8, "[PAD8]"));
    assert_true(string_at(g, "tokenizer.ggml.tokens", 319, "[PAD319]"));
    assert_true(string_at(g, "tokenizer.ggml.merges", 1, "ab c"));
    static const int64_t types[][2] = {{2, KK_GGUF_TOKEN_CONTROL},  {7, KK_GGUF_TOKEN_USER},
                                       {8, KK_GGUF_TOKEN_UNUSED},   {10, KK_GGUF_TOKEN_BYTE},
                                       {266, KK_GGUF_TOKEN_NORMAL}, {319, KK_GGUF_TOKEN_UNUSED}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        int64_t v = 0;
        assert_true(kk_gguf_array_int(kk_gguf_find(g, "tokenizer.ggml.token_type"),
                                      (uint64_t)types[i][0], &v));
        assert_int_equal(v, types[i][1]);
    }
    assert_true(has_int(g, "tokenizer.ggml.bos_token_id", 2));
    assert_true(has_int(g, "tokenizer.ggml.eos_token_id", 1));
    assert_true(has_int(g, "tokenizer.ggml.unknown_token_id", 3));
    /* Stop ids are found again by their texts. */
    assert_int_equal(kk_checkpoint_config(c)->n_stop_ids, 3);
    assert_int_equal(kk_checkpoint_config(c)->stop_ids[1], 5);
    kk_checkpoint_close(c);

    /* And it encodes as the one it was made from. */
    kk_tokenizer *from, *to;
    int32_t *a, *b;
    size_t na, nb;
    assert_int_equal(kk_tokenizer_open(&from, p.in, NULL), KK_OK);
    assert_int_equal(kk_tokenizer_open(&to, p.out, NULL), KK_OK);
    static const char text[] = "abcab<turn|>\xc3\xa9 zab";
    assert_int_equal(
        kk_encode(from, text, strlen(text), KK_ENCODE_BOS | KK_ENCODE_SPECIAL, &a, &na, NULL),
        KK_OK);
    assert_int_equal(
        kk_encode(to, text, strlen(text), KK_ENCODE_BOS | KK_ENCODE_SPECIAL, &b, &nb, NULL), KK_OK);
    assert_int_equal(na, nb);
    assert_memory_equal(a, b, na * sizeof *a);
    kk_free(a);
    kk_free(b);
    kk_tokenizer_close(from);
    kk_tokenizer_close(to);

    /* A template file goes before the one in the configuration. */
    snprintf(path, sizeof path, "%s/chat_template.jinja", p.in);
    scratch_write(path, "{{ new }}", 9);
    quantized(&p, "q8_0");
    c = opened(p.out);
    assert_true(has_str(&c->gguf, "tokenizer.chat_template", "{{ new }}"));
    kk_checkpoint_close(c);
    model_free(m);
}

static void more_tokens_than_rows_are_refused(void **state) {
    const places p = make_places(*state);
    const kk_config config = small_moe(); /* 96 rows, 295 tokens */
    kk_err err;
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    model_write(p.in, m);
    write_tokenizer(p.in);
    assert_int_equal(kk_quantize(p.in, p.out, "q8_0", NULL, NULL, &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "295 tokens"));
    assert_int_equal(scratch_entries(((scratch *)*state)->dir), 1);
    model_free(m);
}

static void without_a_tokenizer_it_says_none(void **state) {
    const places p = make_places(*state);
    const kk_config config = small_ple();
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    model_write(p.in, m);
    quantized(&p, "q8_0");
    kk_checkpoint *c = opened(p.out);
    const kk_gguf *g = &c->gguf;
    assert_true(has_str(g, "tokenizer.ggml.model", "none"));
    assert_true(has_str(g, "general.architecture", "gemma4"));
    assert_true(has_str(g, "general.name", "in"));
    assert_true(has_int(g, "general.file_type", 7));
    assert_true(has_int(g, "gemma4.vocab_size", 96));
    assert_true(has_int(g, "gemma4.attention.shared_kv_layers", 3));
    assert_true(has_int(g, "gemma4.attention.key_length", 32));
    assert_true(has_int(g, "gemma4.attention.key_length_swa", 16));
    assert_true(has_int(g, "gemma4.attention.head_count_kv", 1)); /* one number: all the same */
    int64_t v = 0;
    assert_true(kk_gguf_array_int(kk_gguf_find(g, "gemma4.feed_forward_length"), 3, &v));
    assert_int_equal(v, 192);
    kk_checkpoint_close(c);
    model_free(m);
}

/* ---- older and damaged files ------------------------------------------------------------ */

/* Reads a GGUF, puts `to` for `from` (of the same length) wherever it stands, and writes it. */
static int patch(const char *path, const char *from, const char *to, size_t len) {
    size_t size;
    int n = 0;
    char *file = scratch_read(path, &size);
    for (char *at = file; (at = memmem(at, size - (size_t)(at - file), from, len)); at += len, n++)
        memcpy(at, to, len);
    scratch_write(path, file, size);
    free(file);
    return n;
}

static void open_fails(const char *path, const char *says) {
    kk_checkpoint *c;
    kk_err err = {0};
    assert_int_equal(kk_checkpoint_open(&c, path, NULL, &err), KK_EFORMAT);
    if (!strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
}

static void bad_keys_are_named(void **state) {
    const places p = make_places(*state);
    const kk_config config = small_moe();
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"block_count", "block_COUNT", "'gemma4.block_count' is missing"},
        {"embedding_length", "embedding_LENGTH", "'gemma4.embedding_length' is missing"},
        {"sliding_window_pattern", "sliding_window_PATTERN", "sliding_window_pattern' is missing"},
        {"head_count_kv", "head_count_KV", "'gemma4.attention.head_count_kv' is missing"},
        {"expert_used_count", "expert_USED_count", "'gemma4.expert_used_count' is missing"},
        {"general.architecture", "general.ARCHITECTURE", "'general.architecture' is missing"},
        {"\6\0\0\0\0\0\0\0gemma4", "\6\0\0\0\0\0\0\0gemma3", "architecture is 'gemma3'"},
        {"token_embd.weight", "token_EMBD.weight", "'token_embd.weight' is missing"},
        {"blk.2.attn_q.weight", "blk.2.attn_Q.weight",
         "'layers.2.self_attn.q_proj.weight' is missing"},
        {"blk.2.attn_v.weight", "blk.2.attn_V.weight", /* a sliding layer needs it */
         "'layers.2.self_attn.v_proj.weight' is missing"},
        {"output_norm.weight", "output_norm.WEIGHT", "'norm.weight' is missing"},
    };
    model_write(p.in, m);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t head = cases[i].from[0] == '\6' ? 14 : strlen(cases[i].from);
        quantized(&p, "q8_0");
        assert_true(patch(p.out, cases[i].from, cases[i].to, head) >= 1);
        open_fails(p.out, cases[i].says);
    }
    model_free(m);
}

/* An output head apart from the embedding would be wrong to ignore, and so would other parts of
 * a split model. */
static void foreign_parts_are_refused(void **state) {
    static const struct {
        const char *tensor, *key, *says;
    } cases[] = {
        {"output.weight", "other", "'output.weight': an output head"},
        {"stranger", "split.count", "split into 3 GGUF files"},
        {"stranger", "other", "'norm.weight' is missing"}, /* a stranger alone does no harm */
    };
    scratch *s = *state;
    const kk_config config = small_ple();
    const int64_t table[2] = {96, 64}, ple[2] = {96, 6 * 32}, one = 1;
    float *zeros = calloc(96 * 192, sizeof *zeros);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kk_gguf_writer *w;
        assert_int_equal(kk_gguf_writer_open(&w, scratch_path(s, "part.gguf"), NULL), KK_OK);
        assert_int_equal(kk_gguf_put_model(w, &config, KK_F32, "part", NULL), KK_OK);
        kk_gguf_put_u32(w, cases[i].key, 3);
        kk_gguf_put_tensor(w, "token_embd.weight", KK_F32, 2, table);
        kk_gguf_put_tensor(w, "per_layer_token_embd.weight", KK_F32, 2, ple);
        kk_gguf_put_tensor(w, cases[i].tensor, KK_F32, 1, &one);
        assert_int_equal(kk_gguf_writer_begin(w, NULL), KK_OK);
        assert_int_equal(kk_gguf_writer_data(w, zeros, 96 * 64 * 4, NULL), KK_OK);
        assert_int_equal(kk_gguf_writer_data(w, zeros, 96 * 192 * 4, NULL), KK_OK);
        assert_int_equal(kk_gguf_writer_data(w, zeros, 4, NULL), KK_OK);
        assert_int_equal(kk_gguf_writer_commit(w, NULL), KK_OK);
        open_fails(s->path, cases[i].says);
    }
    free(zeros);
}

/* What an older converter wrote: gate and up apart, types that vary. */
static void split_experts_are_read(void **state) {
    const places p = make_places(*state);
    const kk_config config = small_moe();
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    model_write(p.in, m);
    quantized(&p, "q8_0");
    kk_checkpoint *whole = opened(p.out);
    kk_gguf_writer *w;
    char path[400];
    snprintf(path, sizeof path, "%s/split.gguf", ((scratch *)*state)->dir);
    assert_int_equal(kk_gguf_writer_open(&w, path, NULL), KK_OK);
    assert_int_equal(kk_gguf_put_model(w, &config, KK_Q8_0, "split", NULL), KK_OK);
    for (int pass = 0; pass < 2; pass++) {
        if (pass) assert_int_equal(kk_gguf_writer_begin(w, NULL), KK_OK);
        for (size_t i = 0; i < whole->gguf.n_tensors; i++) {
            const kk_tensor *t = &whole->gguf.tensors[i];
            char *at = strstr((char *)(uintptr_t)t->name, "gate_up_exps"), name[KK_MAX_NAME];
            const int64_t half[3] = {t->dims[0], t->dims[1] / 2, t->dims[2]};
            for (int part = 0; part < (at ? 2 : 1); part++) {
                snprintf(name, sizeof name, "%.*s%s_exps.weight", at ? (int)(at - t->name) : 0,
                         t->name, part ? "up" : "gate");
                if (!pass)
                    kk_gguf_put_tensor(w, at ? name : t->name, t->dtype, t->n_dims,
                                       at ? half : t->dims);
                else /* bytes do not matter here, only how many there are */
                    assert_int_equal(
                        kk_gguf_writer_data(w, t->data.base, t->data.size / (at ? 2 : 1), NULL),
                        KK_OK);
            }
        }
    }
    assert_int_equal(kk_gguf_writer_commit(w, NULL), KK_OK);
    kk_checkpoint *split = opened(path);
    assert_null(kk_checkpoint_find(split, "layers.1.experts.gate_up_proj"));
    assert_int_equal(kk_checkpoint_find(split, "layers.1.experts.gate_proj")->dims[1], 40);
    assert_non_null(kk_checkpoint_find(split, "layers.1.experts.up_proj"));
    kk_model_info a, b;
    kk_checkpoint_info(whole, &a);
    kk_checkpoint_info(split, &b);
    assert_int_equal(a.weight_bytes, b.weight_bytes);
    assert_int_equal(a.token_bytes, b.token_bytes);
    kk_checkpoint_close(split);
    assert_int_equal(patch(path, "blk.1.ffn_up_exps", "blk.1.ffn_UP_exps", 17), 1);
    open_fails(path, "'layers.1.experts.up_proj' is missing");
    kk_checkpoint_close(whole);
    model_free(m);
}

/* Scales that are not finite are counted in every kind of block. */
static void bad_scales_are_counted(void **state) {
    const places p = make_places(*state);
    const kk_config config = small_moe();
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    kk_tensor *t = model_find(m, "layers.0.mlp.up_proj.weight");
    const uint16_t inf = 0x7f80;
    int64_t n;
    memcpy((uint8_t *)(uintptr_t)t->data.base + 2 * 40, &inf, 2);
    model_write(p.in, m);
    static const char *const types[] = {"q8_0", "q4_0", "bf16", "f16"};
    for (int i = 0; i < 4; i++) {
        quantized(&p, types[i]);
        assert_int_equal(kk_model_check(p.out, NULL, NULL, &n, NULL), KK_OK);
        assert_int_equal(n, 1);
    }
    model_free(m);
}

/* ---- failures --------------------------------------------------------------------------- */

typedef struct {
    int64_t last, total;
    int calls, stop_after;
} watcher;

static bool watch(void *user, int64_t done, int64_t total) {
    watcher *w = user;
    assert_true(done > w->last && done <= total);
    w->last = done;
    w->total = total;
    return ++w->calls != w->stop_after;
}

static void progress_is_told_and_obeyed(void **state) {
    scratch *s = *state;
    const places p = make_places(s);
    const kk_config config = small_moe();
    kk_err err;
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    model_write(p.in, m);
    watcher w = {0};
    assert_int_equal(kk_quantize(p.in, p.out, "q8_0", watch, &w, &err), KK_OK);
    assert_int_equal(w.last, w.total);
    kk_model_info info;
    assert_int_equal(kk_model_inspect(p.out, &info, &err), KK_OK);
    assert_int_equal(info.weight_bytes, w.total);
    /* Stopped half-way, the file of before is still there and nothing else. */
    watcher stop = {.stop_after = w.calls / 2};
    assert_int_equal(kk_quantize(p.in, p.out, "q4_0", watch, &stop, &err), KK_ESTOPPED);
    assert_int_equal(kk_model_inspect(p.out, &info, &err), KK_OK);
    assert_string_equal(info.weight_type, "q8_0");
    assert_int_equal(scratch_entries(s->dir), 2);
    assert_int_equal(kk_live_blocks(), 0);
    model_free(m);
}

static void a_full_disk_leaves_nothing(void **state) {
    scratch *s = *state;
    const places p = make_places(s);
    kk_config config = small_moe();
    config.vocab = 4000;
    kk_err err;
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    model_write(p.in, m);
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    signal(SIGXFSZ, SIG_IGN);
    static const rlim_t limits[] = {0, 1000, 300000, 500000};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        small.rlim_cur = limits[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        assert_int_equal(kk_quantize(p.in, p.out, "q8_0", NULL, NULL, &err), KK_EIO);
        assert_non_null(strstr(err.msg, "out.gguf"));
        assert_int_equal(scratch_entries(s->dir), 1);
    }
    setrlimit(RLIMIT_FSIZE, &old);
    model_free(m);
}

static void refuses_what_it_cannot_do(void **state) {
    const places p = make_places(*state);
    const kk_config config = small_moe();
    kk_err err;
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    model_write(p.in, m);
    assert_int_equal(kk_quantize(p.in, p.out, "q6_k", NULL, NULL, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "q6_k"));
    assert_int_equal(kk_quantize(p.in, p.out, "int8", NULL, NULL, &err), KK_EINVAL);
    assert_int_equal(kk_quantize(p.out, p.out, "q8_0", NULL, NULL, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "no folder"));
    assert_int_equal(kk_quantize(p.in, "/proc/out.gguf", "q8_0", NULL, NULL, &err), KK_EIO);
    assert_non_null(strstr(err.msg, "/proc/out.gguf"));
    assert_int_equal(kk_quantize(((scratch *)*state)->dir, p.out, "q8_0", NULL, NULL, &err),
                     KK_EIO);
    assert_int_equal(kk_live_blocks(), 0);
    model_free(m);
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(the_model_is_the_same),
        IN_SCRATCH(float_folders_are_read),
        IN_SCRATCH(blocks_are_the_quantisers_own),
        IN_SCRATCH(divisors_say_which_pairs_rotate),
        IN_SCRATCH(the_tokenizer_comes_along),
        IN_SCRATCH(more_tokens_than_rows_are_refused),
        IN_SCRATCH(without_a_tokenizer_it_says_none),
        IN_SCRATCH(bad_keys_are_named),
        IN_SCRATCH(foreign_parts_are_refused),
        IN_SCRATCH(split_experts_are_read),
        IN_SCRATCH(bad_scales_are_counted),
        IN_SCRATCH(progress_is_told_and_obeyed),
        IN_SCRATCH(a_full_disk_leaves_nothing),
        IN_SCRATCH(refuses_what_it_cannot_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
