/* gate_kinds.h - the kinds of reports.  A kind is a file kind_NAME.c with its members and rules,
 * and a line here; a report of any other kind is refused. */
#ifndef KK_EVAL_GATE_KINDS_H
#define KK_EVAL_GATE_KINDS_H

#include "eval/reports/gate_rules.h"

#define KK_GATE_KINDS(KIND)                                                                        \
    KIND(bench)                                                                                    \
    KIND(needle)                                                                                   \
    KIND(accept)                                                                                   \
    KIND(sweep)                                                                                    \
    KIND(kv)                                                                                       \
    KIND(memory)                                                                                   \
    KIND(compare)                                                                                  \
    KIND(lossless)                                                                                 \
    KIND(projection)                                                                               \
    KIND(steps)                                                                                    \
    KIND(load)                                                                                     \
    KIND(soak)                                                                                     \
    KIND(chaos)

#define KK_GATE_DECLARE(name) extern const kk_gate_kind kk_kind_##name;
KK_GATE_KINDS(KK_GATE_DECLARE)
#undef KK_GATE_DECLARE

#endif
