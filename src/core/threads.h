/* threads.h - a pool of worker threads that runs one parallel loop at a time.
 *
 * Workers spin for a short while after a loop ends and then sleep, so that the hundreds of
 * short loops of one decode step do not pay for waking.  The caller's thread works too. */
#ifndef KK_CORE_THREADS_H
#define KK_CORE_THREADS_H

#include "core/error.h"

typedef struct kk_threads kk_threads;

/* n = 0: every core this process may run on.  pin: each worker stays on a core of its own, the
 * caller's last of all. */
kk_status kk_threads_new(kk_threads **out, int32_t n, bool pin, kk_err *err);
void kk_threads_free(kk_threads *t); /* NULL is fine */
int32_t kk_threads_count(const kk_threads *t);

/* Calls fn(arg, begin, end, thread) until [0, n) is covered, in pieces of at most `grain`, each
 * by some thread; returns when all are done.  thread is in [0, count).  A thread's pieces follow
 * each other, but for the last ones, which it may take over from a slower thread. */
typedef void (*kk_loop_fn)(void *arg, int64_t begin, int64_t end, int32_t thread);
void kk_threads_loop(kk_threads *t, int64_t n, int64_t grain, kk_loop_fn fn, void *arg);

int32_t kk_cores_available(void);

#endif
