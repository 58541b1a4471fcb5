/* reply_test.c - what is printed and kept of an answer: text on stdout, thoughts only where stdout
 * is a terminal, a call on a line of its own, and nothing of the format's marks. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The command line is a program and no library: its files are compiled in here. */
#include "cli/flags.c"
#include "cli/options.c"
#include "cli/output.c"
#include "cli/reply.c"
#include "cli/term.c"
#include "support/shared_tokenizer.h"

/* Feeds an answer token by token with stdout in a file; what was printed, released with free. */
static char *printed(reply *r, const char *answer, bool terminal, bool raw) {
    const kk_answer_opts opts = {.tok = tok, .raw = raw};
    int32_t *ids;
    size_t n, len;
    kk_err err;
    char path[] = "/tmp/reply_test-XXXXXX";
    const int kept = dup(STDOUT_FILENO), fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(kk_encode(tok, answer, strlen(answer), KK_ENCODE_SPECIAL, &ids, &n, NULL),
                     KK_OK);
    assert_true(reply_open(r, &opts, &err));
    fflush(stdout);
    dup2(fd, STDOUT_FILENO);
    term.out_controls = terminal;
    term.colour = true;
    for (size_t i = 0; i < n; i++) reply_token(r, ids[i]);
    reply_finish(r);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    close(fd);
    kk_free(ids);
    char *text = scratch_read(path, &len);
    unlink(path);
    return text;
}

/* A thought is dimmed token by token: as one. */
static void join_dimmed(char *text) {
    static const char seam[] = "\033[0m\033[2m";
    for (char *at; (at = strstr(text, seam));)
        memmove(at, at + strlen(seam), strlen(at + strlen(seam)) + 1);
}

static void expect(const char *answer, bool terminal, const char *want) {
    reply r = {.quiet = false};
    char *text = printed(&r, answer, terminal, false);
    join_dimmed(text);
    assert_string_equal(text, want);
    free(text);
    reply_close(&r);
}

static const char everything[] =
    "<|channel>thought\nLook it up.\n<channel|>Wait.<|tool_call>call:get{city:<|\"|>Oslo<|\"|>}"
    "<tool_call|><|tool_call>call:<tool_call|>";

static void test_printed(void **state) {
    (void)state;
    expect("Hello<turn|>", false, "Hello\n");
    expect("<|channel>thought\nHm.\n<channel|>Hello", false, "Hello\n");
    expect("<|channel>thought\nHm.\n<channel|>Hello", true, "\033[2mHm.\033[0m\n\nHello\n");
    expect(everything, false,
           "Wait.\ntool call: get {\"city\":\"Oslo\"}\na tool call that cannot be read: call:\n");
}

static void test_kept(void **state) {
    reply r = {.quiet = true};
    char *text = printed(&r, everything, true, false);
    (void)state;
    assert_string_equal(text, "");
    assert_string_equal(r.text.bytes, "Wait.");
    assert_string_equal(r.thought.bytes, "Look it up.");
    char *calls = json_dumps(r.calls, JSON_SORT_KEYS | JSON_COMPACT);
    assert_string_equal(calls, "[{\"arguments\":{\"city\":\"Oslo\"},\"name\":\"get\"},{\"text\":"
                               "\"call:\"}]");
    free(calls);
    free(text);
    reply_close(&r);
}

/* What is no answer is printed as it is, special tokens left out. */
static void test_raw(void **state) {
    reply r = {.quiet = false};
    char *text = printed(&r, " <|channel>thought\nHm.\n<channel|>Hello", false, true);
    (void)state;
    assert_string_equal(text, " thought\nHm.\nHello\n");
    free(text);
    reply_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_printed),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_raw),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
