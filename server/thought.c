/* thought.c - see thought.h. */
#include "server/thought.h"

/* Where a thought that the prompt leaves open begins; n: it leaves none open. */
static size_t open_thought(const kk_tokenizer *tok, const int32_t *prompt, size_t n) {
    const int32_t opens = kk_tokenizer_special(tok, "<|channel>");
    const int32_t shuts = kk_tokenizer_special(tok, "<channel|>");
    const int32_t ends = kk_tokenizer_special(tok, "<turn|>");
    if (opens < 0) return n;
    for (size_t i = n; i > 0; i--) {
        if (prompt[i - 1] == shuts || prompt[i - 1] == ends) return n;
        if (prompt[i - 1] == opens) return i - 1;
    }
    return n;
}

kk_status thought_resume(kk_answer *a, const kk_tokenizer *tok, const int32_t *prompt, size_t n,
                         bool *inside, kk_err *err) {
    kk_status st = KK_OK;
    size_t i = open_thought(tok, prompt, n);
    *inside = i < n;
    for (; i < n && st == KK_OK; i++) {
        const kk_answer_span *spans;
        size_t n_spans;
        st = kk_answer_push(a, prompt[i], &spans, &n_spans, err);
    }
    return st;
}
