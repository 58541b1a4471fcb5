/* compare.h - a report beside the report of the same run executed again, member by member.
 *
 * Tables say what is expected of a member; one that no table names must be equal to the digit, as
 * reports print numbers.  A path names members with a slash between, without the places of lists:
 * "rungs/rows/hit" is the hit of every row of every rung.  In a part of a path `*` stands for any
 * letters at its beginning or end; a part `**` for any parts, or none.  The first rule that fits
 * counts, for all that lies below it too. */
#ifndef KK_EVAL_COMPARE_H
#define KK_EVAL_COMPARE_H

#include <jansson.h>

#include "kakeya.h"

typedef enum {
    KK_MEMBER_EQUAL,   /* to the digit */
    KK_MEMBER_TOTAL,   /* of all rows: equal where all were executed, else not compared */
    KK_MEMBER_MOST,    /* the most of all rows: of some it is at most that */
    KK_MEMBER_DRAFTED, /* equal where drafts have a fixed length; else a controller chose it by
                        * time, and it is shown */
    KK_MEMBER_DRAFTED_TOTAL, /* likewise, where all rows were executed, else not compared */
    KK_MEMBER_SHOWN,         /* both values are told where they differ */
    KK_MEMBER_TIMED,         /* both spreads are told */
    KK_MEMBER_LEFT,          /* not looked at: times of single rows, names of machines */
} kk_member_how;

typedef struct {
    const char *path;
    kk_member_how how;
} kk_member_rule;

/* Entries of a list are found by these members, with a space between; lists without are compared
 * place by place. */
typedef struct {
    const char *path, *keys;
} kk_list_rule;

typedef struct {
    const kk_member_rule *members; /* up to one with path NULL */
    const kk_list_rule *lists;     /* likewise */
    bool drawn;                    /* not all rows were executed */
    bool free_drafts;              /* a controller chose the length of drafts */
    bool other_device;             /* bits may differ: nothing is judged, only shown */
    double within; /* numbers that are not whole may differ so much, relative to the larger */
} kk_compare_opts;

typedef enum {
    KK_COMPARED_DIFFERENT, /* must be equal, and is not */
    KK_COMPARED_SHOWN,     /* differs, and may */
    KK_COMPARED_TIMED,
    KK_COMPARED_LACKING, /* the report does not have it: not compared */
    KK_COMPARED_PARTLY,  /* of all rows, and not all were executed: not compared */
} kk_compared;

typedef struct {
    kk_compared what;
    char where[200]; /* "rungs[restored 290].rows[3].hit"; of what was not compared, its path */
    char stored[96], rerun[96];
} kk_compare_finding;

typedef struct {
    kk_compare_finding *finding;
    size_t n, cap;
    size_t compared, different; /* members that had to be equal, and that were not */
} kk_comparison;

/* Fails for want of memory only, and *out then holds nothing. */
kk_status kk_compare(const json_t *stored, const json_t *rerun, const kk_compare_opts *opts,
                     kk_comparison *out, kk_err *err);
void kk_comparison_release(kk_comparison *c); /* zero value is fine; leaves it zero */

/* Whether a path fits a rule's. */
bool kk_member_fits(const char *rule, const char *path);

#endif
