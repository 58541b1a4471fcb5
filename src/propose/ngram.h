/* ngram.h - drafts what followed the last time the session's text looked like this.
 *
 * The longest suffix of the timeline, between KK_NGRAM_LEAST and KK_NGRAM_MOST tokens, that
 * occurred before is looked up, and the tokens after its latest occurrence are the draft.  Where
 * they reach the end of the timeline they go on with the draft itself, so that a loop is drafted
 * in full. */
#ifndef KK_PROPOSE_NGRAM_H
#define KK_PROPOSE_NGRAM_H

#include "core/alloc.h"
#include "propose/propose.h"

enum {
    KK_NGRAM_LEAST = 2,
    KK_NGRAM_LONG = 6, /* matches of so many tokens are found however common their ends are */
    KK_NGRAM_MOST = 16,
    KK_NGRAM_LOOK = 64, /* occurrences examined, the latest first */
};

extern const kk_proposer kk_propose_ngram; /* its state in a session is a kk_ngram */
typedef struct kk_ngram kk_ngram;

/* For timelines of up to max_len tokens.  Takes all its memory here, counted in mem (borrowed)
 * as workspace.  The index follows the timeline by itself, also when it was taken back and went
 * on differently. */
kk_status kk_ngram_new(kk_ngram **out, kk_mem *mem, int32_t max_len, kk_err *err);
void kk_ngram_free(kk_ngram *g); /* NULL is fine */
/* Tokens of the suffix that the last draft was found by; 0: there was none. */
int32_t kk_ngram_matched(const kk_ngram *g);

#endif
