/* fingerprint.h - which model an engine runs, as a number: saved sessions belong to one model. */
#ifndef KK_ENGINE_FINGERPRINT_H
#define KK_ENGINE_FINGERPRINT_H

#include "engine/engine.h"

/* Of the verifier: its configuration, and each tensor's name, type, shape and a sample of its
 * bytes.  Taken once per engine, when it is first asked for; any thread may ask. */
uint64_t kk_engine_fingerprint(kk_engine *e);
/* The same of the drafter; 0: there is none. */
uint64_t kk_engine_drafter_fingerprint(kk_engine *e);
/* And of the projection, as it is kept in memory. */
uint64_t kk_engine_projection_fingerprint(kk_engine *e);

#endif
