/* complete.c - continue a text.
 *
 *     cc -std=c11 complete.c $(pkg-config --cflags --libs kakeya) -o complete
 *     ./complete models/tiny/verifier "def main():"                                    */
#include <kakeya.h>
#include <stdio.h>
#include <string.h>

static kk_status complete(kk_engine *engine, kk_session *s, const char *prompt, kk_err *err) {
    const kk_tokenizer *tok = kk_engine_tokenizer(engine);
    int32_t *ids;
    char *text;
    size_t n, len;
    kk_status st = kk_encode(tok, prompt, strlen(prompt), KK_ENCODE_BOS, &ids, &n, err);
    if (st != KK_OK) return st;
    st = kk_session_append(s, ids, n, NULL, NULL, err); /* evaluates the prompt */
    kk_free(ids);
    if (st != KK_OK) return st;
    st = kk_generate(s, &(kk_generate_opts){.max_tokens = 32}, NULL, NULL, NULL, err);
    if (st != KK_OK) return st;
    st = kk_decode(tok, kk_session_tokens(s) + n, (size_t)kk_session_len(s) - n, false, &text, &len,
                   err);
    if (st != KK_OK) return st;
    printf("%s%s\n", prompt, text);
    kk_free(text);
    return KK_OK;
}

int main(int argc, char **argv) {
    kk_engine *engine = NULL;
    kk_session *session = NULL;
    kk_err err = {.msg = "usage: complete MODEL TEXT"};
    kk_status st = KK_EINVAL;
    if (argc == 3) st = kk_engine_open(&engine, &(kk_engine_opts){.model = argv[1]}, &err);
    if (st == KK_OK) st = kk_session_new(&session, engine, &(kk_session_opts){.ctx = 4096}, &err);
    if (st == KK_OK) st = complete(engine, session, argv[2], &err);
    if (st != KK_OK) fprintf(stderr, "complete: %s\n", err.msg);
    kk_session_free(session);
    kk_engine_close(engine);
    return st != KK_OK;
}
