/* threads.c - one parallel loop at a time over a few worker threads; see threads.h.
 *
 * A decode step is hundreds of loops of some microseconds each, so handing one out must cost
 * less than that and must not wait for a worker that sleeps or lost its core.  Hence a loop is
 * joined, not dealt: the caller opens it, works on it, and closes it when no piece is left; a
 * worker that comes in time takes part, one that does not is not waited for.
 *
 * Each thread has a stretch of the loop of its own, and goes through it in order: what it reads
 * lies in one run of memory, and it can fetch ahead of its work.  When its stretch is done it helps
 * with the others', from where they are.
 *
 * Invariants:
 *   (1) `state` holds the loop's number, an open bit and how many workers are inside;
 *   (2) the loop's description (fn, arg, grain, stretches) is written only while the bit is clear
 *       and nobody is inside;
 *   (3) a worker enters only by raising the count in the same step that sees the bit set;
 *   (4) a worker sleeps only after it found, holding the lock and being counted in `sleepers`,
 *       that no loop is newer than the last one it saw. */
#define _GNU_SOURCE
#include "core/threads.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"

#define OPEN ((uint64_t)1 << 31)
#define INSIDE (OPEN - 1)
#define NUMBER(state) ((uint32_t)((state) >> 32))

enum { LINE = 64, MOST_THREADS = 1024 };
static const double spin_s = 100e-6; /* how long a worker stays awake after its last loop */

typedef struct {
    kk_threads *pool;
    pthread_t id;
    int32_t index; /* 1 .. count - 1; the caller is 0 */
} worker;

typedef struct {
    _Atomic int64_t next;
    int64_t end;
    char pad[LINE - 2 * sizeof(int64_t)]; /* what everyone writes keeps a line of its own */
} stretch;

struct kk_threads {
    int32_t count, started; /* threads in all, workers running */
    bool pin;
    int32_t first_core; /* where the caller ran: workers take the others */
    int home;           /* the number that the system has for it */
    pthread_t caller;   /* the thread that called the last loop */
    worker *workers;    /* [count - 1] */
    kk_loop_fn fn;
    void *arg;
    int64_t grain;
    stretch *stretches; /* [count], of which the loop has n_stretches */
    int32_t n_stretches;
    char pad0[LINE];
    _Atomic uint64_t state;
    char pad1[LINE];
    _Atomic int32_t sleepers; /* changed under the lock */
    _Atomic bool stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int32_t kk_cores_available(void) {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return (int32_t)CPU_COUNT(&set);
#endif
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MOST_THREADS ? MOST_THREADS : (int32_t)n;
}

/* Which of the cores this process may run on the caller runs on now, counted from 0. */
static int32_t core_index(void) {
#ifdef __linux__
    cpu_set_t allowed;
    const int here = sched_getcpu();
    int32_t index = 0;
    if (here < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 0;
    for (size_t core = 0; core < (size_t)here && core < CPU_SETSIZE; core++)
        index += CPU_ISSET(core, &allowed) != 0;
    return index;
#else
    return 0;
#endif
}

/* Best effort: a process that may not choose its cores runs unpinned. */
static void pin_to_core(int32_t index) {
#ifdef __linux__
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    int32_t skip = index % (int32_t)CPU_COUNT(&allowed);
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed) || skip-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
    }
#else
    (void)index;
#endif
}

/* A caller that runs on the core of a pinned worker moves to the one that was left for callers: on
 * one core each would wait for the other's time slice in every loop.  Looked at when another thread
 * calls than before: sessions of several threads take turns, and wake up on any core. */
static void leave_workers_core(kk_threads *t) {
#ifdef __linux__
    const pthread_t self = pthread_self();
    if (!t->pin || pthread_equal(t->caller, self)) return;
    t->caller = self;
    if (sched_getcpu() == t->home) return;
    cpu_set_t allowed;
    const int32_t cores = kk_cores_available(), after = core_index() - t->first_core + cores;
    if (after % cores >= t->count || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    pin_to_core(t->first_core);
    sched_setaffinity(0, sizeof allowed, &allowed); /* it may go anywhere again, later */
#else
    (void)t;
#endif
}

static void take_pieces(kk_threads *t, int32_t thread) {
    for (int32_t i = 0; i < t->n_stretches; i++) {
        stretch *s = &t->stretches[(thread + i) % t->n_stretches];
        while (atomic_load_explicit(&s->next, memory_order_relaxed) < s->end) {
            const int64_t begin =
                atomic_fetch_add_explicit(&s->next, t->grain, memory_order_relaxed);
            if (begin >= s->end) break;
            t->fn(t->arg, begin, s->end - begin < t->grain ? s->end : begin + t->grain, thread);
        }
    }
}

/* Shares out [0, n), n > grain, by whole pieces. */
static void cut_stretches(kk_threads *t, int64_t n) {
    const int64_t pieces = (n - 1) / t->grain + 1;
    t->n_stretches = pieces < t->count ? (int32_t)pieces : t->count;
    int64_t begin = 0;
    for (int32_t i = 0; i < t->n_stretches; i++) {
        stretch *s = &t->stretches[i];
        atomic_store_explicit(&s->next, begin * t->grain, memory_order_relaxed);
        begin += pieces / t->n_stretches + (i < pieces % t->n_stretches);
        s->end = i == t->n_stretches - 1 ? n : begin * t->grain;
    }
}

/* Joins the loop in `state` if it is still open. */
static void join_loop(kk_threads *t, uint64_t state, int32_t thread) {
    while (state & OPEN) {
        if (!atomic_compare_exchange_weak_explicit(&t->state, &state, state + 1,
                                                   memory_order_acquire, memory_order_relaxed))
            continue;
        take_pieces(t, thread);
        atomic_fetch_sub_explicit(&t->state, 1, memory_order_release);
        return;
    }
}

/* Returns when there is a loop newer than `seen`, or the pool stops. */
static uint64_t sleep_for_loop(kk_threads *t, uint32_t seen) {
    uint64_t state;
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleepers, 1);
    for (;;) {
        state = atomic_load(&t->state);
        if (NUMBER(state) != seen || atomic_load(&t->stop)) break;
        pthread_cond_wait(&t->wake, &t->lock);
    }
    atomic_fetch_sub(&t->sleepers, 1);
    pthread_mutex_unlock(&t->lock);
    return state;
}

static uint64_t wait_for_loop(kk_threads *t, uint32_t seen) {
    const double until = kk_now() + spin_s;
    do {
        for (int i = 0; i < 64; i++) {
            const uint64_t state = atomic_load_explicit(&t->state, memory_order_relaxed);
            if (NUMBER(state) != seen) return state;
            relax();
        }
    } while (kk_now() < until);
    return sleep_for_loop(t, seen);
}

static void *worker_main(void *arg) {
    const worker *w = arg;
    kk_threads *t = w->pool;
    if (t->pin) pin_to_core(t->first_core + w->index);
    uint32_t seen = 0;
    while (!atomic_load_explicit(&t->stop, memory_order_acquire)) {
        const uint64_t state = wait_for_loop(t, seen);
        seen = NUMBER(state);
        join_loop(t, state, w->index);
    }
    return NULL;
}

static void wake_sleepers(kk_threads *t) {
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

/* Waits for the workers inside.  One of them may have lost its core to somebody else, so after
 * a while the wait offers this one. */
static void close_loop(kk_threads *t) {
    uint64_t state = atomic_fetch_and_explicit(&t->state, ~OPEN, memory_order_acquire);
    for (int64_t spins = 0; state & INSIDE; spins++) {
        if (spins < 4096)
            relax();
        else
            sched_yield();
        state = atomic_load_explicit(&t->state, memory_order_acquire);
    }
}

static void run_alone(int64_t n, int64_t grain, kk_loop_fn fn, void *arg) {
    for (int64_t begin = 0; begin < n; begin += grain)
        fn(arg, begin, n - begin < grain ? n : begin + grain, 0);
}

void kk_threads_loop(kk_threads *t, int64_t n, int64_t grain, kk_loop_fn fn, void *arg) {
    assert(n >= 0 && n < INT64_MAX / 2);
    if (grain < 1) grain = 1;
    if (n <= grain || t->count == 1) {
        run_alone(n, grain, fn, arg);
        return;
    }
    leave_workers_core(t);
    t->fn = fn;
    t->arg = arg;
    t->grain = grain;
    cut_stretches(t, n);
    const uint64_t last = atomic_load_explicit(&t->state, memory_order_relaxed);
    assert(!(last & (OPEN | INSIDE))); /* one loop at a time, and no loop inside a loop */
    atomic_store(&t->state, (uint64_t)(NUMBER(last) + 1u) << 32 | OPEN);
    if (atomic_load(&t->sleepers) > 0) wake_sleepers(t);
    take_pieces(t, 0);
    close_loop(t);
}

/* Signals belong to the program's own threads: workers start with all of them blocked. */
static kk_status start_workers(kk_threads *t, kk_err *err) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (int32_t i = 1; i < t->count; i++) {
        worker *w = &t->workers[i - 1];
        *w = (worker){.pool = t, .index = i};
        if (kk_fault_point() || pthread_create(&w->id, NULL, worker_main, w) != 0) break;
        t->started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (t->started == t->count - 1) return KK_OK;
    return kk_fail(err, KK_ENOMEM, "the system started only %d of %d threads", t->started + 1,
                   t->count);
}

kk_status kk_threads_new(kk_threads **out, int32_t n, bool pin, kk_err *err) {
    *out = NULL;
    if (n < 0 || n > MOST_THREADS)
        return kk_fail(err, KK_EINVAL, "%d threads: between 1 and %d are possible", n,
                       MOST_THREADS);
    kk_threads *t = kk_zalloc(sizeof *t);
    if (!t) return kk_fail(err, KK_ENOMEM, "no memory for the thread pool");
    t->count = n ? n : kk_cores_available();
    t->pin = pin;
    t->first_core = core_index();
#ifdef __linux__
    t->home = sched_getcpu();
#endif
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    t->workers = kk_calloc((size_t)t->count, sizeof *t->workers);
    t->stretches = kk_calloc((size_t)t->count, sizeof *t->stretches);
    kk_status st = t->workers && t->stretches
                       ? start_workers(t, err)
                       : kk_fail(err, KK_ENOMEM, "no memory for %d threads", t->count);
    if (st != KK_OK) {
        kk_threads_free(t);
        return st;
    }
    *out = t;
    return KK_OK;
}

void kk_threads_free(kk_threads *t) {
    if (!t) return;
    atomic_store(&t->stop, true);
    /* A new number ends the wait of spinning and sleeping workers alike. */
    atomic_fetch_add(&t->state, (uint64_t)1 << 32);
    wake_sleepers(t);
    for (int32_t i = 0; i < t->started; i++) pthread_join(t->workers[i].id, NULL);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    kk_free(t->workers);
    kk_free(t->stretches);
    kk_free(t);
}

int32_t kk_threads_count(const kk_threads *t) { return t->count; }
