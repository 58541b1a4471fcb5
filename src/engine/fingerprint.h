/* fingerprint.h - which model an engine runs, as numbers (format/lineage.h): saved sessions and
 * projections belong to one model, in whatever precision. */
#ifndef KK_ENGINE_FINGERPRINT_H
#define KK_ENGINE_FINGERPRINT_H

#include "engine/engine.h"
#include "format/lineage.h"

/* Of the verifier's weights.  Taken once per engine, when it is first asked for; any thread may
 * ask, as of all of these. */
uint64_t kk_engine_fingerprint(kk_engine *e);
kk_lineage kk_engine_lineage(kk_engine *e);
/* The same of the drafter; zeros: there is none. */
uint64_t kk_engine_drafter_fingerprint(kk_engine *e);
uint64_t kk_engine_drafter_identity(kk_engine *e);
kk_lineage kk_engine_drafter_lineage(kk_engine *e);
/* The fingerprint of the projection, as it is kept in memory. */
uint64_t kk_engine_projection_fingerprint(kk_engine *e);

#endif
