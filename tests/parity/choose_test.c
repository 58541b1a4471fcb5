/* choose_test.c - choices that a device makes are those of the sampler from the same logits:
 * tokens, digests and log-probabilities, for several rows at once, with a history part of which the
 * host does not know. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/choose_cases.h"

static void choices_are_the_samplers(void **state) {
    (void)state;
    static const int32_t vocabs[] = {1, 31, 32, 33, 4096, 5000};
    kk_mem mem = {0};
    kk_err err;
    choose_world w = {.be = kk_backend_named("cpu"), .mem = &mem, .random = 5};
    const kk_dev_opts how = {.threads = 2, .mem = &mem, .max_rows = CC_ROWS};
    assert_int_equal(w.be->open(&w.dev, &how, &err), KK_OK);
    for (size_t i = 0; i < sizeof vocabs / sizeof *vocabs; i++) {
        assert_true(cc_open(&w, vocabs[i], &err));
        for (uint32_t k = 0; k < 60; k++)
            if (!cc_round(&w, k % (CC_KINDS + 1))) fail_msg("round %u: %s", k, w.what);
        cc_close(&w);
    }
    w.be->close(w.dev);
    assert_true(mem.bytes[KK_MEM_WORKSPACE] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(choices_are_the_samplers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
