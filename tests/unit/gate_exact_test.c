/* gate_exact_test.c - what a report may say of exact rows and near ties: of a bench that is true,
 * the least changes that are not. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/doctored.h"

/* A device that is exact in so many rows, by what was measured; its arms decoded 1128 tokens. */
#define MLX                                                                                        \
    "schema = 4; machine/device = \"mlx\"; machine/exact_by = \"measured\"; "                      \
    "machine/exact_rows = 32; "                                                                    \
    "machine/near_ties = {\"choices\": 1128, \"near\": 3, \"share\": 0.002}"
#define ASKED MLX "; machine/exact_by = \"asked\""
#define TIES(choices, near, share)                                                                 \
    MLX "; machine/near_ties = {\"choices\": " choices ", \"near\": " near ", \"share\": " share "}"

static const lie lies[] = {
    {"bench", "schema = 4", "EXACT_UNSAID"},
    {"bench", "schema = 4; machine/exact_by = \"proven\"", "EXACT_UNSAID"},
    {"bench", MLX "; machine/exact_by", "EXACT_UNSAID"},
    {"bench", MLX "; machine/exact_by = \"kernels\"", "EXACT_UNSAID"},
    {"bench", MLX "; machine/exact_by = \"kernels\"; machine/exact_rows", "EXACT_UNSAID"},
    {"bench", MLX "; machine/exact_rows", "EXACT_UNSAID"},
    {"bench", MLX "; machine/exact_rows = 0", "EXACT_UNSAID"},
    {"bench", MLX "; machine/exact_rows = 33", "EXACT_UNSAID"},
    {"bench", MLX "; machine/exact = \"not proven\"", "EXACT_UNSAID"},
    {"bench", MLX "; machine/exact_rows; machine/exact = \"not proven\"", "EXACT_UNSAID"},
    {"bench", MLX "; machine/exact_by = \"neither\"; machine/exact_rows = 2", "EXACT_UNSAID"},
    {"bench", MLX "; machine/exact_by = \"asked\"; machine/exact = \"not proven\"", "EXACT_UNSAID"},
    {"bench", "schema = 4; machine/exact_by = \"kernels\"; machine/exact = \"not proven\"",
     "EXACT_UNSAID"},
    {"bench", MLX "; machine/device = \"cpu\"", "EXACT_UNSAID"},
    {"bench", MLX "; machine/near_ties", "TIES_RECOUNT"},
    /* weights of a token: only a device that keeps them otherwise reads more than the file has */
    {"bench", "arms/plain/token_bytes = 1000", "SHARE_RECOUNT"},
    {"bench", "arms/plain/token_bytes = 99999999", "SHARE_RECOUNT"},
    {"bench", MLX "; arms/plain/token_bytes = 99999999", "SHARE_RECOUNT"},
    {"bench", MLX "; machine/near_ties/near", "TIES_RECOUNT"},
    {"bench", MLX "; machine/near_ties/share", "TIES_RECOUNT"},
    {"bench", TIES("1127", "3", "0.002"), "TIES_RECOUNT"},
    {"bench", TIES("1128", "1129", "0.002"), "TIES_RECOUNT"},
    {"bench", TIES("1128", "-1", "0.002"), "TIES_RECOUNT"},
    {"bench", TIES("1128", "3", "0.0"), "TIES_RECOUNT"},
};

static void test_lies(void **state) {
    (void)state;
    check_lies(lies, sizeof lies / sizeof *lies);
}

static void test_truths(void **state) {
    (void)state;
    static const char *const truths[] = {
        "schema = 4; machine/exact_by = \"kernels\"",
        MLX,
        MLX "; machine/exact_rows = 1",
        MLX "; machine/exact_by = \"neither\"; machine/exact_rows = 1",
        ASKED,
        ASKED "; machine/exact_rows; machine/exact = \"not proven bit-exact on this device\"",
        TIES("1128", "1128", "0.002"),
        TIES("1128", "0", "0.002"),
    };
    for (size_t i = 0; i < sizeof truths / sizeof *truths; i++) {
        json_t *report = doctored("bench", truths[i]);
        kk_verdict v = judge(report);
        if (v.n) print_findings(&v);
        if (v.n) fail_msg("refused: %s", truths[i]);
        kk_verdict_release(&v);
        json_decref(report);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_truths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
