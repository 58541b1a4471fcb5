/* tokenizer_test.c - ids are those of Hugging Face's tokenizers, bytes come back, streams add up,
 * and plain text never becomes a special token.
 *
 * Vectors with the reference's answers are in tests/data/tokenizer: vectors.jsonl for a small
 * vocabulary of Gemma's kind, added_vectors.jsonl for one whose added tokens use every flag. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/utf8.h"
#include "format/gguf_write.h"
#include "support/tokens.h"

static const char golden[] = "tokenizer/tokenizer.json";

static int open_golden(void **state) {
    *state = data_tokenizer(golden);
    return 0;
}

static int close_golden(void **state) {
    kk_tokenizer_close(*state);
    return 0;
}

static int32_t *encode(const kk_tokenizer *tok, const char *text, size_t len, unsigned flags,
                       size_t *n) {
    int32_t *ids;
    kk_err err;
    if (kk_encode(tok, text, len, flags, &ids, n, &err) != KK_OK) fail_msg("%s", err.msg);
    return ids;
}

static char *decode(const kk_tokenizer *tok, const int32_t *ids, size_t n, size_t *len) {
    char *text;
    kk_err err;
    if (kk_decode(tok, ids, n, true, &text, len, &err) != KK_OK) fail_msg("%s", err.msg);
    return text;
}

static void assert_ids(const kk_tokenizer *tok, const char *text, unsigned flags, size_t n_want,
                       const int32_t *want) {
    size_t n;
    int32_t *ids = encode(tok, text, strlen(text), flags, &n);
    assert_int_equal(n, n_want);
    assert_memory_equal(ids, want, n * sizeof *ids);
    kk_free(ids);
}

/* ---- the reference's answers ------------------------------------------------------------ */

static void check_vector(const kk_tokenizer *tok, const json_t *line) {
    const json_t *text = json_object_get(line, "text"), *back = json_object_get(line, "back");
    const json_t *want = json_object_get(line, "ids");
    size_t n, len;
    int32_t *ids =
        encode(tok, json_string_value(text), json_string_length(text), KK_ENCODE_SPECIAL, &n);
    bool same = n == json_array_size(want);
    for (size_t i = 0; same && i < n; i++)
        same = ids[i] == json_integer_value(json_array_get(want, i));
    if (!same) fail_msg("other ids for '%s'", json_string_value(text));
    char *got = decode(tok, ids, n, &len);
    if (len != json_string_length(back) || memcmp(got, json_string_value(back), len) != 0)
        fail_msg("'%s' came back as '%s'", json_string_value(text), got);
    kk_free(got);
    kk_free(ids);
}

static int check_vectors(const kk_tokenizer *tok, const char *name) {
    size_t len;
    int n = 0;
    char *lines = data_read(name, &len), *at = lines;
    for (json_t *line; (line = next_line(&at)); n++) {
        check_vector(tok, line);
        json_decref(line);
    }
    free(lines);
    return n;
}

static void test_vectors(void **state) {
    assert_int_equal(check_vectors(*state, "tokenizer/vectors.jsonl"), 1234);
}

static void test_added_token_vectors(void **state) {
    (void)state;
    kk_tokenizer *tok = data_tokenizer("tokenizer/added.json");
    assert_int_equal(check_vectors(tok, "tokenizer/added_vectors.jsonl"), 300);
    kk_tokenizer_close(tok);
}

/* ---- properties ------------------------------------------------------------------------- */

/* Text of every kind: bytes, characters, words of the vocabulary, special strings, runs. */
static size_t random_text(const kk_tokenizer *tok, uint64_t *seed, char *out, size_t cap) {
    size_t len = 0;
    const uint32_t kinds = 1 + random_below(seed, 6);
    while (len + 64 < cap && random_below(seed, 20)) {
        switch (random_below(seed, kinds)) {
        case 0: out[len++] = (char)(' ' + random_below(seed, 95)); break;
        case 1: {
            uint32_t cp = random_below(seed, random_below(seed, 2) ? 0x3000 : 0x110000);
            if (cp >= 0xd800 && cp <= 0xdfff) cp = 0x2581;
            len += kk_utf8_put(out + len, cp);
            break;
        }
        case 2:
        case 3: {
            size_t n;
            bool special;
            const int32_t id = (int32_t)random_below(seed, (uint32_t)kk_tokenizer_size(tok));
            const char *piece = kk_tokenizer_piece(tok, id, &n, &special);
            if (n > 32) break;
            memcpy(out + len, piece, n);
            len += n;
            break;
        }
        case 4: {
            const uint32_t n = 1 + random_below(seed, 40);
            memset(out + len, " \n\taz="[random_below(seed, 6)], n);
            len += n;
            break;
        }
        default: out[len++] = (char)random_below(seed, 256); break;
        }
    }
    return len;
}

/* What should come back: the text with U+2581 as a space. */
static size_t as_spaces(const char *text, size_t len, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < len; n++) {
        const bool mark = len - i >= 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0;
        out[n] = mark ? ' ' : text[i];
        i += mark ? 3 : 1;
    }
    return n;
}

static void test_bytes_come_back(void **state) {
    const kk_tokenizer *tok = *state;
    uint64_t seed = 1;
    for (int i = 0; i < 4000; i++) {
        char text[1024], want[1024];
        const size_t len = random_text(tok, &seed, text, sizeof text);
        const size_t n_want = as_spaces(text, len, want);
        for (unsigned flags = 0; flags <= KK_ENCODE_SPECIAL; flags += KK_ENCODE_SPECIAL) {
            size_t n, n_back;
            int32_t *ids = encode(tok, text, len, flags, &n);
            char *back = decode(tok, ids, n, &n_back);
            assert_int_equal(n_back, n_want);
            assert_memory_equal(back, want, n_want);
            assert_int_equal(back[n_back], 0);
            kk_free(back);
            kk_free(ids);
        }
    }
}

static void check_plain_text(const kk_tokenizer *tok) {
    uint64_t seed = 2;
    for (int i = 0; i < 4000; i++) {
        char text[1024];
        size_t n, len;
        bool special;
        int32_t *ids = encode(tok, text, random_text(tok, &seed, text, sizeof text), 0, &n);
        for (size_t k = 0; k < n; k++) {
            kk_tokenizer_piece(tok, ids[k], &len, &special);
            assert_false(special);
        }
        kk_free(ids);
    }
}

static void test_plain_text_is_never_special(void **state) {
    check_plain_text(*state);
    kk_tokenizer *tok = data_tokenizer("tokenizer/added.json");
    check_plain_text(tok);
    kk_tokenizer_close(tok);
}

/* Feeds ids one at a time; checks that no piece breaks a character of a valid text. */
static void check_stream(const kk_tokenizer *tok, const int32_t *ids, size_t n, bool show) {
    char *whole, streamed[8192];
    const char *piece;
    size_t n_whole, len, at = 0;
    kk_decoder *d;
    assert_int_equal(kk_decode(tok, ids, n, show, &whole, &n_whole, NULL), KK_OK);
    const bool valid = kk_utf8_valid(whole, n_whole);
    assert_int_equal(kk_decoder_new(&d, tok, show, NULL), KK_OK);
    for (size_t i = 0; i <= n; i++) {
        const kk_status st = i < n ? kk_decoder_push(d, ids[i], &piece, &len, NULL)
                                   : kk_decoder_finish(d, &piece, &len, NULL);
        assert_int_equal(st, KK_OK);
        assert_true(at + len <= n_whole);
        memcpy(streamed + at, piece, len);
        at += len;
        if (valid) assert_true(kk_utf8_valid(piece, len));
        char *so_far; /* at most a character's start is held back */
        size_t n_so_far;
        assert_int_equal(kk_decode(tok, ids, i < n ? i + 1 : n, show, &so_far, &n_so_far, NULL),
                         KK_OK);
        assert_true(n_so_far - at <= (i < n ? 3 : 0));
        kk_free(so_far);
    }
    assert_int_equal(at, n_whole);
    assert_memory_equal(streamed, whole, at);
    kk_decoder_free(d);
    kk_free(whole);
}

static void test_streams_add_up(void **state) {
    const kk_tokenizer *tok = *state;
    const uint32_t size = (uint32_t)kk_tokenizer_size(tok);
    const int32_t byte0 = 138; /* <0x00> of this vocabulary */
    uint64_t seed = 3;
    for (int i = 0; i < 3000; i++) {
        char text[1024];
        int32_t ids[64];
        size_t n = random_below(&seed, 64);
        for (size_t k = 0; k < n; k++) ids[k] = (int32_t)random_below(&seed, size);
        if (i % 2) /* bytes, mostly of long characters, with other tokens between */
            for (size_t k = 0; k < n; k++)
                if (random_below(&seed, 8))
                    ids[k] = byte0 + (int32_t)(0x80 + random_below(&seed, 0x80));
        check_stream(tok, ids, n, i % 4 < 2);
        int32_t *real = encode(tok, text, random_text(tok, &seed, text, sizeof text), 2, &n);
        check_stream(tok, real, n, i % 4 < 2);
        kk_free(real);
    }
}

static void test_stream_waits_for_characters(void **state) {
    const kk_tokenizer *tok = *state;
    const int32_t llama[] = {138 + 0xf0, 138 + 0x9f, 138 + 0xa6, 138 + 0x99};
    const char *piece;
    size_t len;
    kk_decoder *d;
    assert_int_equal(kk_decoder_new(&d, tok, false, NULL), KK_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(kk_decoder_push(d, llama[i], &piece, &len, NULL), KK_OK);
        assert_int_equal(len, i < 3 ? 0 : 4);
    }
    assert_memory_equal(piece, "\xf0\x9f\xa6\x99", 4);
    /* what can never be a character is passed on as soon as that is known, as it is */
    assert_int_equal(kk_decoder_push(d, llama[0], &piece, &len, NULL), KK_OK);
    assert_int_equal(len, 0);
    assert_int_equal(kk_decoder_push(d, llama[0], &piece, &len, NULL), KK_OK);
    assert_int_equal(len, 1);
    assert_memory_equal(piece, "\xf0", 1);
    assert_int_equal(kk_decoder_finish(d, &piece, &len, NULL), KK_OK);
    assert_int_equal(len, 1);
    assert_int_equal(kk_decoder_finish(d, &piece, &len, NULL), KK_OK);
    assert_int_equal(len, 0);
    kk_decoder_free(d);
    kk_decoder_free(NULL);
}

/* ---- flags and limits ------------------------------------------------------------------- */

static void test_one_bos(void **state) {
    const kk_tokenizer *tok = *state;
    const unsigned both = KK_ENCODE_BOS | KK_ENCODE_SPECIAL;
    static const char *const texts[] = {"", "x", "<bos>", "<bos>x", "x<bos>", " <bos>"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        size_t plain, n;
        int32_t *without = encode(tok, texts[i], strlen(texts[i]), KK_ENCODE_SPECIAL, &plain);
        int32_t *with = encode(tok, texts[i], strlen(texts[i]), both, &n);
        const bool had = plain && without[0] == 2;
        assert_int_equal(with[0], 2);
        assert_int_equal(n, plain + !had);
        assert_memory_equal(with + !had, without, plain * sizeof *with);
        kk_free(with);
        kk_free(without);
        with = encode(tok, texts[i], strlen(texts[i]), KK_ENCODE_BOS, &n);
        assert_int_equal(with[0], 2);
        for (size_t k = 1; k < n; k++) assert_int_not_equal(with[k], 2);
        kk_free(with);
    }
}

static void test_special_tokens(void **state) {
    const kk_tokenizer *tok = *state;
    const int32_t turn[] = {105, 106};
    assert_ids(tok, "<|turn><turn|>", KK_ENCODE_SPECIAL, 2, turn);
    assert_int_equal(kk_tokenizer_special(tok, "<bos>"), 2);
    assert_int_equal(kk_tokenizer_special(tok, "<|\"|>"), 52);
    assert_int_equal(kk_tokenizer_special(tok, "<nothing>"), -1);
    assert_int_equal(kk_tokenizer_special(tok, "\n"), -1); /* a token, not a special one */
    assert_int_equal(kk_tokenizer_size(tok), 2600);
    char *text;
    size_t len;
    const int32_t ids[] = {2, 107, 106};
    assert_int_equal(kk_decode(tok, ids, 3, false, &text, &len, NULL), KK_OK);
    assert_string_equal(text, "\n");
    kk_free(text);
    assert_int_equal(kk_decode(tok, ids, 3, true, &text, &len, NULL), KK_OK);
    assert_string_equal(text, "<bos>\n<turn|>");
    kk_free(text);
}

static void test_ids_out_of_range(void **state) {
    const kk_tokenizer *tok = *state;
    static const int32_t wrong[] = {-1, 2600, INT32_MAX, INT32_MIN};
    kk_decoder *d;
    assert_int_equal(kk_decoder_new(&d, tok, true, NULL), KK_OK);
    for (int i = 0; i < 4; i++) {
        char *text = (char *)d, number[16];
        const char *piece;
        size_t len = 9;
        kk_err err;
        snprintf(number, sizeof number, "%d", wrong[i]);
        assert_int_equal(kk_decode(tok, &wrong[i], 1, true, &text, &len, &err), KK_EINVAL);
        assert_null(text);
        assert_non_null(strstr(err.msg, number));
        assert_int_equal(kk_decoder_push(d, wrong[i], &piece, &len, &err), KK_EINVAL);
        assert_non_null(strstr(err.msg, "2600"));
    }
    kk_decoder_free(d);
}

/* A megabyte of any shape is a matter of a fraction of a second.  The limit only has to be far
 * below what a square would take (hours), so that a busy machine with sanitizers passes. */
static void test_a_megabyte_of_anything(void **state) {
    const kk_tokenizer *tok = *state;
    enum { SIZE = 1000000 };
    char *text = malloc(SIZE);
    uint64_t seed = 5;
    for (int shape = 0; shape < 7; shape++) {
        for (size_t i = 0; i < SIZE; i++) {
            const char bytes[] = {'a',
                                  ' ',
                                  '\n',
                                  "<|turn>"[i % 7],
                                  (char)('a' + random_below(&seed, 26)),
                                  (char)random_below(&seed, 256),
                                  "the self return "[(i * i / 7) % 16]};
            text[i] = bytes[shape];
        }
        size_t n;
        const double start = kk_now();
        int32_t *ids = encode(tok, text, SIZE, KK_ENCODE_SPECIAL, &n);
        const double took = kk_now() - start;
        if (took > 15) fail_msg("shape %d took %.1f s", shape, took);
        kk_free(ids);
    }
    free(text);
}

/* ---- files ------------------------------------------------------------------------------ */

/* A small valid tokenizer.json; free it. */
static char *small_json(void) {
    char *json;
    size_t len;
    FILE *f = open_memstream(&json, &len);
    fputs("{\"added_tokens\": [{\"id\": 0, \"content\": \"<bos>\", \"special\": true}], "
          "\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
          "\"content\": \"\xe2\x96\x81\"}, "
          "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \" \"}}, "
          "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"ByteFallback\"}]}, "
          "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"byte_fallback\": true, "
          "\"ignore_merges\": false, \"vocab\": {\"<bos>\": 0",
          f);
    for (int b = 0; b < 256; b++) fprintf(f, ", \"<0x%02X>\": %d", (unsigned)b, b + 1);
    fputs(", \"a\": 257, \"b\": 258, \"ab\": 259, \"<\": 260, \"bos>\": 261, "
          "\"\xe2\x96\x81\": 262}, "
          "\"merges\": [[\"a\", \"b\"], [\"<\", \"bos>\"]]}}",
          f);
    fclose(f);
    return json;
}

/* The text with the first `from` as `to`; frees the text it is given. */
static char *changed(char *json, const char *from, const char *to) {
    char *out;
    const char *at = strstr(json, from);
    if (!at) fail_msg("'%s' is not in the file", from);
    if (asprintf(&out, "%.*s%s%s", (int)(at - json), json, to, at + strlen(from)) < 0) abort();
    free(json);
    return out;
}

static void test_damaged_json_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *said;
    } cases[] = {
        {"{", "[", "object"},
        {"\"BPE\"", "\"Unigram\"", "'Unigram'"},
        {"\"BPE\"", "7", "string"},
        {"\"vocab\": {\"<bos>\": 0", "\"vocab\": {\"<bos>\": -1", "id -1"},
        {"\"vocab\": {\"<bos>\": 0", "\"vocab\": {\"<bos>\": 99999999999", "99999999999"},
        {"\"vocab\": {\"<bos>\": 0", "\"vocab\": {\"<bos>\": 1", "two tokens have the id 1"},
        {"\"vocab\": {\"<bos>\": 0", "\"vocab\": {\"<bos>\": 0.5", "whole number"},
        {"\"vocab\": {\"<bos>\": 0", "\"vocab\": {\"\": 0", "empty"},
        {"\"b\": 258", "\"a\": 258", "same text 'a'"},
        {"<0x41>", "<0x4x>", "<0x41>"},
        {"\"\xe2\x96\x81\": 262", "\"c\": 262", "U+2581, the space"},
        {"\"vocab\"", "\"words\"", "no vocabulary"},
        {"\"merges\"", "\"words\"", "no merges"},
        {"\"dropout\": null", "\"dropout\": 0.1", "dropout"},
        {"\"ignore_merges\": false", "\"ignore_merges\": true", "ignore_merges"},
        {"\"byte_fallback\": true", "\"byte_fallback\": false", "byte_fallback"},
        {"\"dropout\"", "\"end_of_word_suffix\": \"</w>\", \"dropout\"", "borders"},
        {"\"dropout\"", "\"vocab\": {}, \"dropout\"", "two vocabularies"},
        {"\"dropout\"", "\"merges\": [], \"dropout\"", "two lists of merges"},
        {"\"normalizer\"", "\"model\": {}, \"normalizer\"", "two models"},
        {"\"normalizer\"", "\"added_tokens\": [], \"normalizer\"", "two lists of added"},
        {"\"normalizer\"", "\"x\"", "U+2581"},
        {"{\"type\": \"Replace\"", "{\"type\": \"NFKC\"", "'NFKC'"},
        {"{\"String\": \" \"}, \"content\"", "{\"Regex\": \" \"}, \"content\"", "normalizer"},
        {"\"Split\"", "\"Metaspace\"", "'Metaspace'"},
        {"\"ByteFallback\"", "\"Strip\"", "'Strip'"},
        {"\"special\": true", "\"special\": true, \"single_word\": true", "single_word"},
        {"\"special\": true", "\"lstrip\": true, \"normalized\": true", "stripped"},
        {"\"content\": \"<bos>\"", "\"content\": \"\"", "no content"},
        {"\"id\": 0,", "", "no id"},
        {"\"id\": 0,", "\"id\": 5,", "id 5, but 0"},
        {"[\"a\", \"b\"]", "[\"a\"]", "fewer than two"},
        {"[\"a\", \"b\"]", "[\"a\", \"b\", \"b\"]", "more than two"},
        {"[\"a\", \"b\"]", "\"ab\"", "no space"},
        {"[\"a\", \"b\"]", "\"\"", "no space"},
        {"[\"a\", \"b\"]", "7", "array"},
        {"[\"a\", \"b\"], [\"<\"", "[\"a\" \"b\"], [\"<\"", "expected"},
        {"\"bos>\"]]}}", "\"bos>\"]]}} x", "after its end"},
        {"\"bos>\"]]}}", "\"bos>\"]]}", "expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *json = changed(small_json(), cases[i].from, cases[i].to);
        kk_tokenizer *tok = (kk_tokenizer *)json;
        kk_err err = {0};
        const int64_t live = kk_live_bytes();
        assert_int_equal(kk_tokenizer_from_json(&tok, json, strlen(json), "small", &err),
                         KK_EFORMAT);
        assert_null(tok);
        assert_int_equal(kk_live_bytes(), live);
        if (!strstr(err.msg, cases[i].said) || strncmp(err.msg, "small: ", 7) != 0)
            fail_msg("'%s' instead of '%s'", err.msg, cases[i].said);
        free(json);
    }
}

static void test_truncated_json_is_refused(void **state) {
    (void)state;
    char *json = small_json();
    const size_t len = strlen(json);
    for (size_t n = 0; n < len; n++) {
        kk_tokenizer *tok;
        char *cut = malloc(n ? n : 1); /* its exact size, for the sanitizer */
        memcpy(cut, json, n);
        assert_int_equal(kk_tokenizer_from_json(&tok, cut, n, "cut", NULL), KK_EFORMAT);
        free(cut);
    }
    free(json);
}

static void test_other_spellings_of_a_file(void **state) {
    (void)state;
    static const char *const changes[][2] = {
        {"[\"a\", \"b\"]", "\"a b\""},
        {"\"type\": \"BPE\"", "\"type\": \"\\u0042PE\", \"other\": [{}, 1.5e3, null]"},
        {"{\"added_tokens\"", "{\"version\": \"1.0\", \"padding\": null, \"added_tokens\""},
        {"{\"type\": \"Replace\"",
         "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Replace\", \"pattern\": "
         "{\"String\": \" \"}, \"content\": \"\xe2\x96\x81\"}], \"x\": \"Replace\""},
        {"\"pre_tokenizer\": {\"type\"", "\"pre_tokenizer\": null, \"post_processor\": {\"type\""},
        /* merges before the vocabulary, one of them of a side that is no token */
        {"\"vocab\"", "\"merges\": [[\"a\", \"b\"], \"a nothing\", \"b a\"], \"vocab\""},
    };
    const int32_t want[] = {259, 257, 257, 259};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char *json = changed(small_json(), changes[i][0], changes[i][1]);
        if (i == 5) json = changed(json, "}, \"merges\"", "}, \"later\"");
        kk_tokenizer *tok;
        kk_err err;
        if (kk_tokenizer_from_json(&tok, json, strlen(json), "small", &err) != KK_OK)
            fail_msg("%s", err.msg);
        assert_ids(tok, "abaaab", 0, 4, want);
        kk_tokenizer_close(tok);
        free(json);
    }
}

/* A vocabulary whose merges would make <bos> out of plain text: those are dropped. */
static void test_merges_make_no_special_token(void **state) {
    (void)state;
    char *json =
        changed(small_json(), "\"a\": 257",
                "\"bo\": 267, \"s\": 263, \"o\": 264, \"s>\": 265, \">\": 266, \"a\": 257");
    json = changed(json, "[[\"a\", \"b\"]",
                   "[[\"b\", \"o\"], [\"s\", \">\"], [\"bo\", \"s>\"], [\"a\", \"b\"]");
    kk_tokenizer *tok;
    assert_int_equal(kk_tokenizer_from_json(&tok, json, strlen(json), "small", NULL), KK_OK);
    const int32_t plain[] = {260, 261}, special[] = {0};
    assert_ids(tok, "<bos>", 0, 2, plain);
    assert_ids(tok, "<bos>", KK_ENCODE_SPECIAL, 1, special);
    assert_int_equal(kk_tokenizer_merges(tok), 4); /* all but the one that makes <bos> */
    kk_tokenizer_close(tok);
    free(json);
}

/* Where merges take byte tokens, words are not cut between characters: bytes of two may join. */
static void test_merges_of_byte_tokens(void **state) {
    (void)state;
    char *json = changed(small_json(), "\"a\": 257", "\"<0x43><0x44>\": 263, \"a\": 257");
    json = changed(json, "[[\"a\", \"b\"]", "[[\"<0x43>\", \"<0x44>\"], [\"a\", \"b\"]");
    kk_tokenizer *tok;
    assert_int_equal(kk_tokenizer_from_json(&tok, json, strlen(json), "small", NULL), KK_OK);
    const int32_t want[] = {257, 263, 259, 1 + 'C', 262, 1 + 'D'};
    assert_ids(tok, "aCDabC D", 0, 6, want);
    kk_tokenizer_close(tok);
    free(json);
}

static void test_open_paths(void **state) {
    scratch *s = *state;
    kk_tokenizer *tok;
    kk_err err;
    char *json = small_json();
    assert_int_equal(kk_tokenizer_open(&tok, scratch_path(s, "none"), &err), KK_EIO);
    assert_null(tok);
    assert_non_null(strstr(err.msg, "none"));
    assert_int_equal(kk_tokenizer_open(&tok, s->dir, &err), KK_EIO); /* no tokenizer.json yet */
    assert_non_null(strstr(err.msg, "tokenizer.json"));
    assert_int_equal(kk_tokenizer_open(&tok, NULL, &err), KK_EINVAL);
    scratch_write(scratch_path(s, "tokenizer.json"), "", 0);
    assert_int_equal(kk_tokenizer_open(&tok, s->dir, &err), KK_EFORMAT);
    scratch_write(scratch_path(s, "tokenizer.json"), json, strlen(json));
    assert_int_equal(kk_tokenizer_open(&tok, s->dir, &err), KK_OK);
    assert_int_equal(kk_tokenizer_size(tok), 263);
    kk_tokenizer_close(tok);
    assert_int_equal(kk_tokenizer_open(&tok, scratch_path(s, "tokenizer.json"), &err), KK_OK);
    kk_tokenizer_close(tok);
    kk_tokenizer_close(NULL);
    free(json);
}

static void test_bos_must_exist(void **state) {
    (void)state;
    char *json = changed(small_json(), "\"special\": true", "\"special\": false");
    kk_tokenizer *tok;
    int32_t *ids;
    size_t n;
    kk_err err;
    assert_int_equal(kk_tokenizer_from_json(&tok, json, strlen(json), "small", NULL), KK_OK);
    assert_int_equal(kk_encode(tok, "a", 1, KK_ENCODE_BOS, &ids, &n, &err), KK_EINVAL);
    assert_null(ids);
    assert_non_null(strstr(err.msg, "<bos>"));
    kk_tokenizer_close(tok);
    free(json);
}

/* ---- GGUF ------------------------------------------------------------------------------- */

typedef struct {
    const char *model;
    size_t n_types; /* how many types to write; 0: all */
    bool no_merges, wrong_merges;
    int64_t bos; /* -1: none */
} gguf_case;

static bool is_printed_mark(const char *text, size_t len) {
    static const char *const marks[] = {"<|channel>", "<tool_call|>", "<|\"|>"};
    for (int i = 0; i < 3; i++)
        if (len == strlen(marks[i]) && memcmp(text, marks[i], len) == 0) return true;
    return false;
}

static void put_merges(kk_gguf_writer *w, const kk_tokenizer *tok) {
    kk_gguf_put_array(w, "tokenizer.ggml.merges", KK_GGUF_STRING, kk_tokenizer_merges(tok));
    for (size_t i = 0; i < kk_tokenizer_merges(tok); i++) {
        int32_t left, right;
        size_t a, b;
        bool special;
        char text[256];
        kk_tokenizer_merge(tok, i, &left, &right);
        const char *l = kk_tokenizer_piece(tok, left, &a, &special);
        const char *r = kk_tokenizer_piece(tok, right, &b, &special);
        const int n = snprintf(text, sizeof text, "%.*s %.*s", (int)a, l, (int)b, r);
        kk_gguf_put_element(w, text, (size_t)n);
    }
}

/* A GGUF file with the tokenizer, typed the way llama.cpp's converter does. */
static void write_gguf(const char *path, const kk_tokenizer *tok, gguf_case c) {
    kk_gguf_writer *w;
    const int32_t n = kk_tokenizer_size(tok);
    assert_int_equal(kk_gguf_writer_open(&w, path, NULL), KK_OK);
    if (c.model) kk_gguf_put_str(w, "tokenizer.ggml.model", c.model, strlen(c.model));
    kk_gguf_put_array(w, "tokenizer.ggml.tokens", KK_GGUF_STRING, (uint64_t)n);
    int32_t *types = calloc((size_t)n, sizeof *types);
    for (int32_t id = 0; id < n; id++) {
        size_t len;
        bool special;
        const char *text = kk_tokenizer_piece(tok, id, &len, &special);
        kk_gguf_put_element(w, text, len);
        types[id] =
            is_printed_mark(text, len) ? KK_GGUF_TOKEN_USER : kk_tokenizer_gguf_type(tok, id);
    }
    const size_t n_types = c.n_types ? c.n_types : (size_t)n;
    kk_gguf_put_array(w, "tokenizer.ggml.token_type", KK_GGUF_I32, n_types);
    kk_gguf_put_bytes(w, types, n_types * sizeof *types);
    free(types);
    if (c.wrong_merges)
        kk_gguf_put_u32(w, "tokenizer.ggml.merges", 7);
    else if (!c.no_merges)
        put_merges(w, tok);
    if (c.bos >= 0) kk_gguf_put_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)c.bos);
    assert_int_equal(kk_gguf_writer_begin(w, NULL), KK_OK);
    assert_int_equal(kk_gguf_writer_commit(w, NULL), KK_OK);
}

static void test_gguf_gives_the_same_ids(void **state) {
    scratch *s = *state;
    static const char *const names[][2] = {
        {golden, "tokenizer/vectors.jsonl"},
        {"tokenizer/added.json", NULL}, /* its flags have no place in GGUF; only loaded */
    };
    for (int i = 0; i < 2; i++) {
        kk_tokenizer *from_json = data_tokenizer(names[i][0]), *tok;
        kk_err err;
        write_gguf(scratch_path(s, "t.gguf"), from_json, (gguf_case){.model = "gemma4", .bos = 2});
        if (kk_tokenizer_open(&tok, s->path, &err) != KK_OK) fail_msg("%s", err.msg);
        if (names[i][1]) assert_int_equal(check_vectors(tok, names[i][1]), 1234);
        assert_int_equal(kk_tokenizer_size(tok), kk_tokenizer_size(from_json));
        assert_int_equal(kk_tokenizer_merges(tok), kk_tokenizer_merges(from_json));
        if (i == 0) { /* marks the converter lists as user-defined are special all the same */
            size_t n;
            int32_t *ids = encode(tok, "<|channel>", 10, 0, &n);
            assert_true(n > 1);
            kk_free(ids);
            assert_int_equal(kk_tokenizer_special(tok, "<|channel>"), 100);
            assert_int_equal(kk_tokenizer_special(tok, "<|\"|>"), 52);
        }
        kk_tokenizer_close(tok);
        kk_tokenizer_close(from_json);
    }
}

static void test_damaged_gguf_is_refused(void **state) {
    scratch *s = *state;
    static const struct {
        gguf_case c;
        const char *said;
    } cases[] = {
        {{.model = NULL, .bos = 2}, "no tokenizer"},
        {{.model = "llama", .bos = 2}, "'llama'"},
        {{.model = "gemma4", .n_types = 5, .bos = 2}, "5 token types"},
        {{.model = "gemma4", .no_merges = true, .bos = 2}, "tokenizer.ggml.merges"},
        {{.model = "gemma4", .wrong_merges = true, .bos = 2}, "array of strings"},
        {{.model = "gemma4", .bos = 99999}, "99999"},
    };
    kk_tokenizer *whole = data_tokenizer(golden), *tok;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kk_err err = {0};
        write_gguf(scratch_path(s, "t.gguf"), whole, cases[i].c);
        assert_int_equal(kk_tokenizer_open(&tok, s->path, &err), KK_EFORMAT);
        assert_null(tok);
        if (!strstr(err.msg, cases[i].said)) fail_msg("'%s'", err.msg);
    }
    kk_tokenizer_close(whole);
}

int main(void) {
#define WITH_GOLDEN(f) cmocka_unit_test_setup_teardown(f, open_golden, close_golden)
#define WITH_FOLDER(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        WITH_GOLDEN(test_vectors),
        cmocka_unit_test(test_added_token_vectors),
        WITH_GOLDEN(test_bytes_come_back),
        WITH_GOLDEN(test_plain_text_is_never_special),
        WITH_GOLDEN(test_streams_add_up),
        WITH_GOLDEN(test_stream_waits_for_characters),
        WITH_GOLDEN(test_one_bos),
        WITH_GOLDEN(test_special_tokens),
        WITH_GOLDEN(test_ids_out_of_range),
        WITH_GOLDEN(test_a_megabyte_of_anything),
        cmocka_unit_test(test_damaged_json_is_refused),
        cmocka_unit_test(test_truncated_json_is_refused),
        cmocka_unit_test(test_other_spellings_of_a_file),
        cmocka_unit_test(test_merges_make_no_special_token),
        cmocka_unit_test(test_merges_of_byte_tokens),
        WITH_FOLDER(test_open_paths),
        cmocka_unit_test(test_bos_must_exist),
        WITH_FOLDER(test_gguf_gives_the_same_ids),
        WITH_FOLDER(test_damaged_gguf_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
