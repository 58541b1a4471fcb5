/* tokenizer_real_test.c - ids of the released tokenizer.json, which is not part of this repository:
 * skipped unless KAKEYA_REAL_TOKENIZER names it. */
#include <stdlib.h>

#include "kakeya.h"
#include "support/skips.h"

/* Ids of the released vocabulary, as its users published them; needs the file, by path. */
static void test_ids(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        int32_t ids[12];
    } cases[] = {
        {"Hello world", 2, {9259, 1902}},
        {" Hello world", 2, {26352, 1902}},
        {"Hello, world!", 4, {9259, 236764, 1902, 236888}},
        {"  Hello", 2, {138, 9259}},
        {"    Hello\n    Hello", 5, {140, 9259, 107, 140, 9259}},
        {"\n =", 2, {107, 578}},
        {"' era", 2, {236789, 6933}},
        {"333", 3, {236800, 236800, 236800}},
        {"!!!!!!", 1, {123947}},
        {"\t\n", 2, {255968, 107}},
        {" this is \xf0\x9f\xa6\x99.cpp", 9, {672, 563, 236743, 478, 397, 404, 391, 236761, 12362}},
        {"w048 7tuijk dsdfhu",
         11,
         {236765, 236771, 236812, 236828, 236743, 236832, 11372, 12065, 31806, 3405, 9360}},
        {"ied 4 \xc2\xbd months", 5, {1178, 236743, 236812, 47041, 3794}},
        {"\xc3\x84pfel", 3, {239122, 22744, 535}},
        {" discards", 2, {2243, 2206}},
    };
    const char *path = getenv("KAKEYA_REAL_TOKENIZER");
    if (!path) skip_test("KAKEYA_REAL_TOKENIZER names no tokenizer");
    kk_tokenizer *tok;
    assert_ok(kk_tokenizer_open(&tok, path, why));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t *ids;
        size_t n;
        assert_ok(kk_encode(tok, cases[i].text, strlen(cases[i].text), 0, &ids, &n, why));
        if (n != cases[i].n || memcmp(ids, cases[i].ids, n * sizeof *ids) != 0)
            fail_msg("'%s' has other ids", cases[i].text);
        kk_free(ids);
    }
    kk_tokenizer_close(tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ids)};
    return ended(cmocka_run_group_tests(tests, NULL, NULL));
}
