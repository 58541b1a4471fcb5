/* shared_tokenizer.h - one tokenizer of tests/data for all tests of a file: its group's setup opens
 * it, its teardown closes it. */
#ifndef KK_TESTS_SHARED_TOKENIZER_H
#define KK_TESTS_SHARED_TOKENIZER_H

#include "support/tokens.h"

static kk_tokenizer *tok;

static int open_tokenizer(void **state) {
    (void)state;
    tok = data_tokenizer("tokenizer/tokenizer.json");
    return 0;
}

static int close_tokenizer(void **state) {
    (void)state;
    kk_tokenizer_close(tok);
    return 0;
}

#endif
