/* sessions.c - one engine, and a session in each of several threads.
 *
 *     cc -std=c11 sessions.c $(pkg-config --cflags --libs kakeya) -pthread -o sessions
 *     ./sessions MODEL "def add(" "import os" "class Tree:"
 *
 * Nothing has to be done so that the sessions share passes over the weights: threads that generate
 * at the same time do, and each gets the tokens that it would get alone. */
#include <kakeya.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 64, TOKENS = 48 };

typedef struct {
    kk_engine *engine;
    const char *prompt;
    char *text; /* what was generated; kk_free */
    kk_err err; /* code KK_OK: nothing went wrong */
} job;

/* A session belongs to one thread at a time; this one never leaves its own. */
static kk_status answer(job *j, kk_session *s) {
    const kk_tokenizer *tok = kk_engine_tokenizer(j->engine);
    const kk_generate_opts how = {.max_tokens = TOKENS};
    int32_t *ids;
    size_t n, len, from;
    kk_status st = kk_encode(tok, j->prompt, strlen(j->prompt), KK_ENCODE_BOS, &ids, &n, &j->err);
    if (st != KK_OK) return st;
    st = kk_session_append(s, ids, n, NULL, NULL, &j->err);
    kk_free(ids);
    if (st != KK_OK) return st;
    from = (size_t)kk_session_len(s);
    st = kk_generate(s, &how, NULL, NULL, NULL, &j->err);
    if (st != KK_OK) return st;
    return kk_decode(tok, kk_session_tokens(s) + from, (size_t)kk_session_len(s) - from, false,
                     &j->text, &len, &j->err);
}

static void *run(void *arg) {
    job *j = arg;
    kk_session *s;
    if (kk_session_new(&s, j->engine, NULL, &j->err) != KK_OK) return NULL;
    if (answer(j, s) == KK_OK) j->err.code = KK_OK;
    kk_session_free(s);
    return NULL;
}

int main(int argc, char **argv) {
    static job jobs[MOST];
    pthread_t thread[MOST];
    kk_engine *engine;
    kk_err err;
    const int n = argc - 2;
    if (n < 1 || n > MOST) {
        fprintf(stderr, "usage: sessions MODEL PROMPT...   (up to %d prompts)\n", MOST);
        return 2;
    }
    const kk_engine_opts opts = {.model = argv[1]};
    if (kk_engine_open(&engine, &opts, &err) != KK_OK || !kk_engine_tokenizer(engine)) {
        fprintf(stderr, "sessions: %s\n", engine ? "the model has no tokenizer" : err.msg);
        kk_engine_close(engine);
        return 1;
    }
    int started = 0, failed = 0;
    for (; started < n; started++) {
        jobs[started] = (job){.engine = engine, .prompt = argv[started + 2]};
        if (pthread_create(&thread[started], NULL, run, &jobs[started]) != 0) break;
    }
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < started; i++) {
        failed += jobs[i].err.code != KK_OK;
        printf("--- %s%s\n", jobs[i].prompt, jobs[i].text ? jobs[i].text : jobs[i].err.msg);
        kk_free(jobs[i].text);
    }
    kk_sharing shared;
    kk_engine_sharing(engine, &shared);
    printf("=== %lld passes, %.2f sessions in each\n", (long long)shared.rounds,
           shared.rounds ? (double)shared.sessions / (double)shared.rounds : 0.0);
    kk_engine_close(engine);
    return failed || started < n;
}
