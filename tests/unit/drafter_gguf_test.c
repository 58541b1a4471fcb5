/* drafter_gguf_test.c - a drafter in a GGUF file: one written of a folder drafts what the folder
 * drafts, one as llama.cpp's converter writes it loads, and every key and tensor that is wrong is
 * refused by its name. */
#define _GNU_SOURCE
#include "engine/session.h"
#include "format/gguf_names.h"
#include "support/drafter_folder.h"
#include "support/ok.h"

typedef struct {
    char in[300], out[300], bent[300];
} places;

static places make_places(scratch *s) {
    places p;
    snprintf(p.in, sizeof p.in, "%s/in", s->dir);
    snprintf(p.out, sizeof p.out, "%s/out.gguf", s->dir);
    snprintf(p.bent, sizeof p.bent, "%s/bent.gguf", s->dir);
    mkdir(p.in, 0700);
    return p;
}

/* The small drafter's folder with this config.json, as a GGUF file. */
static places make_file(scratch *s, const char *json, const char *type) {
    const places p = make_places(s);
    model_tensors *m = drafter_make(KK_BF16);
    drafter_write(p.in, m);
    drafter_write_config(p.in, json);
    assert_ok(kk_quantize(p.in, p.out, type, NULL, NULL, why));
    model_free(m);
    return p;
}

static kk_drafter *open_drafter(const char *path) {
    kk_drafter *d = NULL;
    assert_ok(kk_drafter_open(&d, path, NULL, why));
    return d;
}

/* ---- a folder and its file ------------------------------------------------------------------ */

static void assert_same_values(const kk_drafter *folder, const kk_drafter *file) {
    assert_int_equal(kk_drafter_count(folder), kk_drafter_count(file));
    for (size_t i = 0; i < kk_drafter_count(folder); i++) {
        const kk_tensor *a = kk_drafter_at(folder, i), *b = kk_drafter_at(file, i);
        const size_t n = (size_t)kk_tensor_values(a);
        float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
        assert_string_equal(a->name, b->name);
        assert_memory_equal(a->dims, b->dims, (size_t)a->n_dims * sizeof *a->dims);
        kk_dequantize(a->dtype, a->data.base, x, n);
        kk_dequantize(b->dtype, b->data.base, y, n);
        assert_memory_equal(x, y, n * sizeof *x);
        free(x);
        free(y);
    }
}

/* Every variation of a configuration comes back as it was. */
static void a_file_says_what_the_folder_says(void **state) {
    static const char *const configs[] = {
        DRAFTER_JSON,
        "{" DRAFTER_FIELDS ", \"is_causal\": true, " DRAFTER_OWN "}",
        "{" DRAFTER_FIELDS ", \"is_causal\": false, " DRAFTER_OWN "}",
        "{" DRAFTER_FIELDS ", \"embed_scale\": \"twice\", " DRAFTER_OWN "}",
        "{" DRAFTER_FIELDS ", \"embed_scale\": 1, " DRAFTER_OWN "}",
        "{" DRAFTER_FIELDS ", \"embed_scale\": \"once\", " DRAFTER_OWN "}",
        "{" DRAFTER_FIELDS
        ", \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 512, " DRAFTER_OWN "}",
        /* no list of layers, of taps; no window; no soft-cap; no number of target layers */
        "{" DRAFTER_FIELDS ", \"dflash_config\": {\"mask_token_id\": 0}}",
        "{\"vocab_size\": 96, \"hidden_size\": 64, \"intermediate_size\": 80, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"head_dim\": 16, \"rope_theta\": 10000, \"block_size\": 32, "
        "\"dflash_config\": {\"mask_token_id\": 95, \"target_layer_ids\": [5, 0, 3]}}",
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const places p = make_file(*state, configs[i], "bf16");
        kk_drafter *folder = open_drafter(p.in), *file = open_drafter(p.out);
        assert_memory_equal(kk_drafter_config_of(folder), kk_drafter_config_of(file),
                            sizeof(kk_drafter_config));
        assert_same_values(folder, file);
        kk_drafter_close(folder);
        kk_drafter_close(file);
    }
}

typedef struct {
    int32_t tokens[400], len;
    kk_result r;
} outcome;

static outcome draft_by(const char *model, const char *drafter, const char *type) {
    outcome x = {0};
    kk_engine *e = NULL;
    kk_session *s = NULL;
    int32_t prompt[60];
    const kk_engine_opts opts = {
        .model = model, .drafter = drafter, .draft_type = type, .threads = 1, .no_pin = true};
    const kk_session_opts how = {.ctx = 400, .spec = KK_SPEC_DFLASH, .draft_fixed = true};
    const kk_generate_opts gen = {.max_tokens = 150, .ignore_eos = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    for (int i = 0; i < 60; i++) prompt[i] = (i * 37 + 11) % 300;
    assert_ok(kk_session_new(&s, e, &how, why));
    assert_ok(kk_session_append(s, prompt, 60, NULL, NULL, why));
    assert_ok(kk_generate(s, &gen, NULL, NULL, &x.r, why));
    x.len = s->len;
    memcpy(x.tokens, s->tokens, (size_t)s->len * sizeof *x.tokens);
    kk_session_free(s);
    kk_engine_close(e);
    return x;
}

static void assert_same_outcome(const outcome *a, const outcome *b) {
    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->len * sizeof *a->tokens);
    assert_true(a->r.logits_hash == b->r.logits_hash);
    assert_int_equal(a->r.rounds, b->r.rounds);
    assert_int_equal(a->r.spec.drafted, b->r.spec.drafted);
    assert_int_equal(a->r.spec.accepted, b->r.spec.accepted);
    assert_memory_equal(a->r.spec.histogram, b->r.spec.histogram, sizeof a->r.spec.histogram);
}

/* Tokens, hashes and the fate of every draft. */
static void a_file_drafts_what_the_folder_drafts(void **state) {
    const places p = make_places(*state);
    static const char *const types[] = {"file", "q8_0", "q4_0"};
    assert_ok(kk_quantize(KK_MODELS "/tiny/drafter", p.out, "bf16", NULL, NULL, why));
    for (int i = 0; i < 3; i++) {
        const outcome folder =
            draft_by(KK_MODELS "/tiny/verifier", KK_MODELS "/tiny/drafter", types[i]);
        const outcome file = draft_by(KK_MODELS "/tiny/verifier", p.out, types[i]);
        assert_true(folder.r.spec.accepted > 0);
        assert_same_outcome(&folder, &file);
    }
    /* Packed when it was written is packed when it is loaded. */
    const outcome loaded = draft_by(KK_MODELS "/tiny/verifier", p.out, "q8_0");
    assert_ok(kk_quantize(KK_MODELS "/tiny/drafter", p.bent, "q8_0", NULL, NULL, why));
    const outcome written = draft_by(KK_MODELS "/tiny/verifier", p.bent, "q8_0");
    assert_same_outcome(&loaded, &written);
}

/* ---- a file bent ---------------------------------------------------------------------------- */

typedef enum { DROP, INT, REAL, WORD, FLAG, INTS, FLAGS } change;

typedef struct {
    const char *key;
    change how;
    int64_t ints[20];
    int32_t n; /* of INTS and FLAGS */
    double real;
    const char *word;
    const char *says;
} bend;

static void put_changed(kk_gguf_writer *w, const bend *b) {
    switch (b->how) {
    case DROP: break;
    case INT: kk_gguf_put_u32(w, b->key, (uint32_t)b->ints[0]); break;
    case REAL: kk_gguf_put_f32(w, b->key, (float)b->real); break;
    case WORD: kk_gguf_put_str(w, b->key, b->word, strlen(b->word)); break;
    case FLAG: kk_gguf_put_bool(w, b->key, b->ints[0] != 0); break;
    case INTS:
        kk_gguf_put_array(w, b->key, KK_GGUF_I32, (uint64_t)b->n);
        for (int32_t i = 0; i < b->n; i++)
            kk_gguf_put_bytes(w, &(int32_t){(int32_t)b->ints[i]}, sizeof(int32_t));
        break;
    case FLAGS:
        kk_gguf_put_array(w, b->key, KK_GGUF_BOOL, (uint64_t)b->n);
        for (int32_t i = 0; i < b->n; i++) kk_gguf_put_bytes(w, &(uint8_t){b->ints[i] != 0}, 1);
        break;
    }
}

/* A key as it was; of the types that drafters have. */
static void put_kept(kk_gguf_writer *w, const kk_gguf_kv *kv) {
    char key[128];
    snprintf(key, sizeof key, "%.*s", (int)kv->key.size, (const char *)kv->key.base);
    switch (kv->type) {
    case KK_GGUF_U32: kk_gguf_put_u32(w, key, kk_le32(kv->data.base)); break;
    case KK_GGUF_F32: kk_gguf_put_f32(w, key, kk_bits_f32(kk_le32(kv->data.base))); break;
    case KK_GGUF_BOOL: kk_gguf_put_bool(w, key, kv->data.base[0]); break;
    case KK_GGUF_STRING:
        kk_gguf_put_str(w, key, (const char *)kv->data.base + 8, kv->data.size - 8);
        break;
    case KK_GGUF_ARRAY:
        kk_gguf_put_array(w, key, kv->elem, kv->n);
        kk_gguf_put_bytes(w, kv->data.base, kv->data.size);
        break;
    default: fail_msg("%s", key);
    }
}

static bool is_key(const kk_gguf_kv *kv, const char *key) {
    return kv->key.size == strlen(key) && memcmp(kv->key.base, key, kv->key.size) == 0;
}

/* Writes p->bent: p->out with one key changed, one tensor by another name (name NULL: none). */
static void write_bent(const places *p, const bend *b, const char *name, const char *other) {
    kk_map map;
    kk_gguf g;
    kk_gguf_writer *w;
    assert_ok(kk_map_open(&map, p->out, why));
    assert_ok(kk_gguf_parse(&g, map.span, "good", why));
    assert_ok(kk_gguf_writer_open(&w, p->bent, why));
    for (size_t i = 0; i < g.n_kv; i++)
        if (!b || !is_key(&g.kv[i], b->key)) put_kept(w, &g.kv[i]);
    if (b) put_changed(w, b);
    for (size_t i = 0; i < g.n_tensors; i++) {
        const kk_tensor *t = &g.tensors[i];
        const bool renamed = name && strcmp(t->name, name) == 0;
        kk_gguf_put_tensor(w, renamed ? other : t->name, t->dtype, t->n_dims, t->dims);
    }
    assert_ok(kk_gguf_writer_begin(w, why));
    for (size_t i = 0; i < g.n_tensors; i++)
        assert_ok(kk_gguf_writer_data(w, g.tensors[i].data.base, g.tensors[i].data.size, why));
    assert_ok(kk_gguf_writer_commit(w, why));
    kk_gguf_free(&g);
    kk_map_close(&map);
}

static void refused(const char *path, const char *says) {
    kk_drafter *d = (kk_drafter *)1;
    kk_err err = {0};
    assert_int_equal(kk_drafter_open(&d, path, NULL, &err), KK_EFORMAT);
    assert_null(d);
    if (!strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
}

static void every_key_is_checked(void **state) {
    const places p = make_file(*state, DRAFTER_JSON, "bf16");
    static const bend bends[] = {
        {.key = "general.architecture", .how = WORD, .word = "gemma4", .says = "'gemma4'"},
        {.key = "general.architecture",
         .how = WORD,
         .word = "dflash-draft",
         .says = "not 'dflash'"},
        {.key = "general.architecture", .how = DROP, .says = "general.architecture is missing"},
        {.key = "split.count", .how = INT, .ints = {2}, .says = "split into 2"},
        {.key = "dflash.vocab_size", .how = DROP, .says = "vocab_size is missing"},
        {.key = "dflash.vocab_size", .how = INT, .ints = {1}, .says = "vocab_size is 1"},
        {.key = "dflash.vocab_size", .how = WORD, .word = "96", .says = "is no integer"},
        {.key = "tokenizer.ggml.tokens", .how = INTS, .n = 3, .says = "has 3 tokens"},
        {.key = "dflash.embedding_length", .how = DROP, .says = "embedding_length is missing"},
        {.key = "dflash.embedding_length", .how = INT, .ints = {65537}, .says = "65537"},
        {.key = "dflash.embedding_length", .how = INT, .ints = {32}, .says = "tensor"},
        {.key = "dflash.feed_forward_length",
         .how = DROP,
         .says = "feed_forward_length is missing"},
        {.key = "dflash.feed_forward_length", .how = INT, .ints = {0}, .says = "is 0"},
        {.key = "dflash.feed_forward_length", .how = INT, .ints = {81}, .says = "tensor"},
        {.key = "dflash.context_length", .how = INT, .ints = {0}, .says = "context_length is 0"},
        {.key = "dflash.attention.layer_norm_rms_epsilon", .how = REAL, .real = 1, .says = "is 1"},
        {.key = "dflash.attention.layer_norm_rms_epsilon",
         .how = WORD,
         .word = "small",
         .says = "is no number"},
        {.key = "dflash.final_logit_softcapping", .how = REAL, .real = -1, .says = "is -1"},
        {.key = "dflash.rope.freq_base", .how = DROP, .says = "freq_base is missing"},
        {.key = "dflash.rope.freq_base", .how = REAL, .real = 0.5, .says = "freq_base is 0.5"},
        {.key = "dflash.rope.dimension_count",
         .how = INT,
         .ints = {8},
         .says = "8 of them rotated"},
        {.key = "dflash.rope.scaling.type", .how = WORD, .word = "yarn", .says = "scaling.type"},
        {.key = "dflash.attention.head_count", .how = DROP, .says = "head_count is missing"},
        {.key = "dflash.attention.head_count", .how = INT, .ints = {1025}, .says = "1025"},
        {.key = "dflash.attention.head_count_kv", .how = INT, .ints = {5}, .says = "is 5"},
        {.key = "dflash.attention.head_count_kv", .how = INT, .ints = {3}, .says = "do not divide"},
        {.key = "dflash.attention.key_length", .how = INT, .ints = {514}, .says = "is 514"},
        {.key = "dflash.attention.key_length", .how = INT, .ints = {15}, .says = "keys of 15"},
        {.key = "dflash.attention.value_length", .how = INT, .ints = {18}, .says = "values of 18"},
        {.key = "dflash.block_count", .how = DROP, .says = "block_count is missing"},
        {.key = "dflash.block_count", .how = INT, .ints = {65}, .says = "block_count is 65"},
        {.key = "dflash.block_count", .how = INT, .ints = {1}, .says = "list of 1 layers"},
        {.key = "dflash.attention.sliding_window",
         .how = DROP,
         .says = "sliding_window is missing"},
        {.key = "dflash.attention.sliding_window_pattern",
         .how = DROP,
         .says = "pattern is missing"},
        {.key = "dflash.attention.sliding_window_pattern",
         .how = FLAGS,
         .n = 3,
         .says = "list of 2 layers"},
        {.key = "dflash.attention.sliding_window_pattern",
         .how = INT,
         .ints = {2},
         .says = "list of 2 layers"},
        {.key = "dflash.attention.causal", .how = INT, .ints = {1}, .says = "neither true nor"},
        {.key = "dflash.embed_scale", .how = WORD, .word = "thrice", .says = "'thrice'"},
        {.key = "dflash.embed_scale", .how = INT, .ints = {1}, .says = "1, once or twice"},
        {.key = "dflash.block_size", .how = DROP, .says = "block_size is missing"},
        {.key = "dflash.block_size", .how = INT, .ints = {1}, .says = "block_size is 1"},
        {.key = "dflash.block_size", .how = INT, .ints = {33}, .says = "block_size is 33"},
        {.key = "dflash.target_layers", .how = DROP, .says = "target_layers is missing"},
        {.key = "dflash.target_layers", .how = INT, .ints = {1}, .says = "no list of 1 to 16"},
        {.key = "dflash.target_layers", .how = INTS, .n = 0, .says = "no list of 1 to 16"},
        {.key = "dflash.target_layers", .how = INTS, .n = 17, .says = "no list of 1 to 16"},
        {.key = "dflash.target_layers",
         .how = INTS,
         .n = 3,
         .ints = {1, 0, 2},
         .says = "target_layers[1] is 0"},
        {.key = "dflash.target_layers",
         .how = INTS,
         .n = 3,
         .ints = {1, 3, 7},
         .says = "target_layers[2] is 7, outside 1..6"},
        {.key = "dflash.target_layers", .how = INTS, .n = 2, .ints = {1, 2}, .says = "fc.weight"},
        {.key = "dflash.target_block_count", .how = INT, .ints = {257}, .says = "is 257"},
        {.key = "dflash.expert_count", .how = INT, .ints = {8}, .says = "expert_count"},
        {.key = "dflash.hyper_connection.count", .how = INT, .ints = {4}, .says = "hyper_conn"},
        {.key = "dflash.norm_before_fc", .how = FLAG, .ints = {1}, .says = "norm_before_fc"},
        {.key = "dflash.sample_from_anchor", .how = FLAG, .ints = {1}, .says = "from_anchor"},
        {.key = "tokenizer.ggml.mask_token_id", .how = DROP, .says = "mask_token_id is missing"},
        {.key = "tokenizer.ggml.mask_token_id", .how = INT, .ints = {96}, .says = "id is 96"},
    };
    write_bent(&p, NULL, NULL, NULL);
    kk_drafter_close(open_drafter(p.bent));
    for (size_t i = 0; i < sizeof bends / sizeof *bends; i++) {
        write_bent(&p, &bends[i], NULL, NULL);
        refused(p.bent, bends[i].says);
    }
}

static void tensors_are_checked(void **state) {
    const places p = make_file(*state, DRAFTER_JSON, "bf16");
    static const struct {
        const char *name, *other, *says;
    } renamed[] = {
        {"fc.weight", "markov_w1.weight", "fc.weight"},
        {"enc.output_norm.weight", "token_embd.weight", "hidden_norm.weight"},
        {"output_norm.weight", "output.weight", "norm.weight"},
        {"blk.0.ffn_norm.weight", "blk.0.post_attention_norm.weight", "post_attention_layernorm"},
        {"blk.1.attn_q.weight", "blk.2.attn_q.weight", "layers.1.self_attn.q_proj.weight"},
        {"blk.1.attn_k.weight", "blk.1.attn_v.weight", "twice"},
    };
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++) {
        write_bent(&p, NULL, renamed[i].name, renamed[i].other);
        refused(p.bent, renamed[i].says);
    }
    size_t n;
    char *bytes = scratch_read(p.out, &n); /* cut anywhere */
    for (size_t at = 0; at < n; at += n / 23 + 1) {
        scratch_write(p.bent, bytes, at);
        kk_drafter *d = NULL;
        kk_err err = {0};
        assert_int_equal(kk_drafter_open(&d, p.bent, NULL, &err), KK_EFORMAT);
        assert_true(strlen(err.msg) > 10);
    }
    free(bytes);
}

/* A tensor that a drafter does not have, beside all that it has. */
static void another_tensor_is_refused(void **state) {
    const places p = make_file(*state, DRAFTER_JSON, "bf16");
    kk_map map;
    kk_gguf g;
    kk_gguf_writer *w;
    const int64_t dims[2] = {96, 64};
    static const float head[96 * 64];
    assert_ok(kk_map_open(&map, p.out, why));
    assert_ok(kk_gguf_parse(&g, map.span, "good", why));
    assert_ok(kk_gguf_writer_open(&w, p.bent, why));
    for (size_t i = 0; i < g.n_kv; i++) put_kept(w, &g.kv[i]);
    for (size_t i = 0; i < g.n_tensors; i++)
        kk_gguf_put_tensor(w, g.tensors[i].name, g.tensors[i].dtype, g.tensors[i].n_dims,
                           g.tensors[i].dims);
    kk_gguf_put_tensor(w, "output.weight", KK_F32, 2, dims);
    assert_ok(kk_gguf_writer_begin(w, why));
    for (size_t i = 0; i < g.n_tensors; i++)
        assert_ok(kk_gguf_writer_data(w, g.tensors[i].data.base, g.tensors[i].data.size, why));
    assert_ok(kk_gguf_writer_data(w, head, sizeof head, why));
    assert_ok(kk_gguf_writer_commit(w, why));
    kk_gguf_free(&g);
    kk_map_close(&map);
    refused(p.bent, "'output.weight'");
}

/* ---- files of others --------------------------------------------------------------------- */

static void put_tokens(kk_gguf_writer *w, int32_t n) {
    char text[16];
    kk_gguf_put_array(w, "tokenizer.ggml.tokens", KK_GGUF_STRING, (uint64_t)n);
    for (int32_t i = 0; i < n; i++)
        kk_gguf_put_element(w, text, (size_t)snprintf(text, sizeof text, "t%d", i));
}

/* The keys that llama.cpp's converter writes: a tokenizer and no size of the vocabulary, no
 * soft-cap, nothing about the verifier's layers. */
static void a_converted_file_loads(void **state) {
    const places p = make_file(*state, DRAFTER_JSON, "f16");
    static const char *const not_written[] = {
        "dflash.vocab_size", "dflash.final_logit_softcapping", "dflash.target_block_count",
        "dflash.rope.dimension_count", "tokenizer.ggml.model"};
    kk_map map;
    kk_gguf g;
    kk_gguf_writer *w;
    assert_ok(kk_map_open(&map, p.out, why));
    assert_ok(kk_gguf_parse(&g, map.span, "good", why));
    assert_ok(kk_gguf_writer_open(&w, p.bent, why));
    for (size_t i = 0; i < g.n_kv; i++) {
        bool skip = false;
        for (size_t k = 0; k < 5; k++) skip = skip || is_key(&g.kv[i], not_written[k]);
        if (!skip) put_kept(w, &g.kv[i]);
    }
    put_tokens(w, 96);
    for (size_t i = 0; i < g.n_tensors; i++)
        kk_gguf_put_tensor(w, g.tensors[i].name, g.tensors[i].dtype, g.tensors[i].n_dims,
                           g.tensors[i].dims);
    assert_ok(kk_gguf_writer_begin(w, why));
    for (size_t i = 0; i < g.n_tensors; i++)
        assert_ok(kk_gguf_writer_data(w, g.tensors[i].data.base, g.tensors[i].data.size, why));
    assert_ok(kk_gguf_writer_commit(w, why));
    kk_gguf_free(&g);
    kk_map_close(&map);
    kk_drafter *folder = open_drafter(p.in), *file = open_drafter(p.bent);
    kk_drafter_config want = *kk_drafter_config_of(folder);
    want.softcap = 0;
    want.n_target_layers = 0;
    assert_memory_equal(kk_drafter_config_of(file), &want, sizeof want);
    assert_int_equal(want.taps[2], 4); /* of the folder; 5 in the file */
    kk_drafter_close(folder);
    kk_drafter_close(file);
}

/* The names of a drafter's tensors are one to one. */
static void every_tensor_has_two_names(void **state) {
    const places p = make_file(*state, DRAFTER_JSON, "q8_0");
    kk_drafter *d = open_drafter(p.out);
    char there[KK_MAX_NAME], back[KK_MAX_NAME];
    for (size_t i = 0; i < kk_drafter_count(d); i++) {
        assert_true(kk_gguf_drafter_name_from_hf(kk_drafter_at(d, i)->name, there));
        assert_true(kk_gguf_drafter_name_to_hf(there, back));
        assert_string_equal(back, kk_drafter_at(d, i)->name);
    }
    assert_false(kk_gguf_drafter_name_to_hf("token_embd.weight", back));
    kk_drafter_close(d);
}

/* A drafter is no model, in either place. */
static void a_drafter_is_no_model(void **state) {
    const places p = make_file(*state, DRAFTER_JSON, "bf16");
    kk_checkpoint *c = NULL;
    kk_err err = {0};
    assert_int_equal(kk_checkpoint_open(&c, p.out, NULL, &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "dflash"));
    assert_ok(kk_quantize(KK_TEST_DATA "/parity/moe", p.bent, "bf16", NULL, NULL, why));
    refused(p.bent, "'gemma4'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_says_what_the_folder_says),
        cmocka_unit_test(a_file_drafts_what_the_folder_drafts),
        cmocka_unit_test(every_key_is_checked),
        cmocka_unit_test(tensors_are_checked),
        cmocka_unit_test(another_tensor_is_refused),
        cmocka_unit_test(a_converted_file_loads),
        cmocka_unit_test(every_tensor_has_two_names),
        cmocka_unit_test(a_drafter_is_no_model),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
