/* slots.h - what each worker is at, for /slots, as clients of llama.cpp's server know it.
 *
 * A slot is written by the worker that runs a request, and by the threads of its choices; anybody
 * may read it meanwhile.  Nothing hangs on its numbers fitting together at one moment. */
#ifndef KK_SERVER_SLOTS_H
#define KK_SERVER_SLOTS_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>

struct server;

typedef struct worker_slot {
    atomic_bool runs;
    atomic_llong task;         /* number of the request that runs or ran last, from 1; 0: none */
    atomic_llong prompt;       /* tokens of its prompt, */
    atomic_llong cached, read; /* those that were there already, and that were evaluated so far */
    atomic_llong written;      /* tokens of its answers */
    atomic_llong most;         /* that these may have; 0: as many as fit */
} worker_slot;

/* Each does nothing without a slot. */
void slot_begin(worker_slot *s, long long task);
void slot_end(worker_slot *s);
void slot_prompt(worker_slot *s, long long prompt, long long cached, long long most);
void slot_read(worker_slot *s, long long tokens); /* of the prompt, since slot_prompt */
void slot_wrote(worker_slot *s);                  /* a token more */

/* A list of all; *idle: those that run nothing. */
json_t *slots_json(struct server *s, int *idle);

#endif
