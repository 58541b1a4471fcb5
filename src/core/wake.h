/* wake.h - how threads wait for each other without spinning: a thread's own wake-up, and a lock
 * that is given out in the order in which it was asked for. */
#ifndef KK_CORE_WAKE_H
#define KK_CORE_WAKE_H

#include <pthread.h>
#include <stdint.h>

/* Flags that other threads set for one thread, which sleeps until there are some.  Every thread
 * has a mutex of its own here, so that threads that are woken do not contend for a common one.
 * The owner may free it as soon as kk_wake_wait has returned the last flags set. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t set;
    unsigned flags;
} kk_wake;

void kk_wake_init(kk_wake *w);
void kk_wake_free(kk_wake *w);
void kk_wake_set(kk_wake *w, unsigned flags);
/* Takes the flags that are set, as soon as there are some; 0: at `until`, a time of kk_now(), there
 * were none.  until 0: waits as long as it takes. */
unsigned kk_wake_wait(kk_wake *w, double until);

/* A lock whose waiters get it in order.  A plain mutex goes to whoever runs: a thread that unlocks
 * and locks again at once, as decoding does, would keep all others from it. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint64_t next, serving; /* tickets */
} kk_fair_lock;

void kk_fair_lock_init(kk_fair_lock *l);
void kk_fair_lock_free(kk_fair_lock *l);
void kk_fair_lock_take(kk_fair_lock *l);
void kk_fair_lock_give(kk_fair_lock *l);
/* Tickets that were ever taken: it rises with each kk_fair_lock_take of any thread. */
uint64_t kk_fair_lock_tickets(kk_fair_lock *l);

#endif
