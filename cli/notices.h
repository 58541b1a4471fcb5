/* notices.h - what a user should know of a run that goes well: weights that something was not made
 * with, a context that is full. */
#ifndef KAKEYA_CLI_NOTICES_H
#define KAKEYA_CLI_NOTICES_H

#include "kakeya.h"

/* Whether the projection or the session (either may be missing) was made with other weights of the
 * model than the engine's. */
bool notices_other_weights(const kk_engine *e, const kk_session *s);
/* On standard error: of the projection, one line where there is something to say. */
void notices_projection(const kk_engine *e, bool verbose);
/* Of a session that was saved as `saved` says and goes on as s: that tokens may differ. */
void notices_saved(const char *name, const kk_saved_info *saved, const kk_session *s, bool exact);
/* That a generation ended because the context is full; nothing where it did not. */
void notices_full(const kk_session *s, kk_stop_reason stop);

#endif
