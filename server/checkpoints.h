/* checkpoints.h - where a session is to go back to, so that the work can be stopped. */
#ifndef KK_SERVER_CHECKPOINTS_H
#define KK_SERVER_CHECKPOINTS_H

#include "kakeya.h"

/* What a session evaluates inside the call that goes back, or forks, can neither be stopped nor
 * watched: beyond the window of its sliding layers that may be all from the last checkpoint on.
 * Then it is to go back to that checkpoint, and the rest to be appended as any prompt.  Returns
 * len where little is evaluated on the way there. */
int32_t checkpoints_before(const kk_session *s, int32_t len, int32_t window);

#endif
