/* fuzz_answer.c - any bytes as a model's answer: wherever they are cut, the same parts come out,
 * as tokens too; arguments of calls are JSON; no stop text is in the text.
 *
 * The first byte chooses stop texts, the second the size of the pieces. */
#define _GNU_SOURCE
#include "format/tokenizer_parts.h"
#include "support/answers.h"
#include "support/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds) {
    if (!holds) abort();
}

static void same_in_pieces(const kk_answer_opts *opts, const char *text, size_t len,
                           const char *whole, size_t piece) {
    bool bad;
    char *got = parts_of_text(opts, text, len, piece, &bad);
    need(!bad && strcmp(got, whole) == 0);
    free(got);
}

/* All special tokens are marks of the format: others are left out as tokens and stay as text. */
static bool only_marks(const kk_tokenizer *tok, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const int32_t id = ids[i];
        const bool mark = id == 1 || id == 2 || (id >= 46 && id <= 52) || id == 98 || id == 100 ||
                          id == 101 || id == 105 || id == 106;
        if (tok->kinds[id] == KK_TOKEN_SPECIAL && !mark) return false;
    }
    return true;
}

static void same_as_tokens(const kk_answer_opts *opts, const char *text, size_t len) {
    int32_t *ids;
    char *back;
    size_t n, n_back;
    need(kk_encode(opts->tok, text, len, KK_ENCODE_SPECIAL, &ids, &n, NULL) == KK_OK);
    need(kk_decode(opts->tok, ids, n, true, &back, &n_back, NULL) == KK_OK);
    if (only_marks(opts->tok, ids, n)) {
        bool bad;
        char *got = parts_of_tokens(opts, ids, n, &bad);
        need(!bad);
        same_in_pieces(opts, back, n_back, got, 0);
        free(got);
    }
    kk_free(ids);
    kk_free(back);
}

static void check_span(const kk_answer_opts *opts, const kk_answer_span *s) {
    for (size_t i = 0; i < opts->n_stops && s->kind == KK_ANSWER_TEXT; i++)
        need(!memmem(s->text, s->len, opts->stops[i], strlen(opts->stops[i])));
    if (!s->arguments) return;
    json_t *map = json_loads(s->arguments, 0, NULL);
    need(json_is_object(map));
    json_decref(map);
}

static void check_spans(const kk_answer_opts *opts, const char *text, size_t len) {
    const kk_answer_span *spans;
    kk_answer *a;
    size_t n;
    need(kk_answer_new(&a, opts, NULL) == KK_OK);
    need(kk_answer_push_text(a, text, len, &spans, &n, NULL) == KK_OK);
    for (size_t i = 0; i < n; i++) check_span(opts, &spans[i]);
    need(kk_answer_finish(a, &spans, &n, NULL) == KK_OK);
    for (size_t i = 0; i < n; i++) check_span(opts, &spans[i]);
    kk_answer_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const stops[] = {"aab", "\n\n", "ab", "<|chan", "\xc3\xa9t", "END", "e"};
    static kk_tokenizer *tok;
    if (!tok) tok = data_tokenizer("tokenizer/tokenizer.json");
    if (size < 2) return 0;
    const kk_answer_opts opts = {.tok = tok,
                                 .raw = data[0] & 128,
                                 .stops = stops + (data[0] & 3),
                                 .n_stops = (data[0] >> 2) & 3};
    const char *text = (const char *)data + 2;
    const size_t len = size - 2;
    const int64_t live = kk_live_bytes();
    bool bad;
    char *whole = parts_of_text(&opts, text, len, 0, &bad);
    need(!bad);
    same_in_pieces(&opts, text, len, whole, 1);
    same_in_pieces(&opts, text, len, whole, 1 + data[1] % 40);
    free(whole);
    check_spans(&opts, text, len);
    if (!opts.raw) same_as_tokens(&opts, text, len);
    need(kk_live_bytes() == live);
    return 0;
}
