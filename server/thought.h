/* thought.h - a thought that a prompt has opened and that the answer goes on with. */
#ifndef KK_SERVER_THOUGHT_H
#define KK_SERVER_THOUGHT_H

#include "kakeya.h"

/* Pushes what the prompt has of an open thought, so that the answer is read as its continuation;
 * *inside: there is one. */
kk_status thought_resume(kk_answer *a, const kk_tokenizer *tok, const int32_t *prompt, size_t n,
                         bool *inside, kk_err *err);

#endif
