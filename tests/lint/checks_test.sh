#!/usr/bin/env bash
# checks_test.sh - the checks of `make lint` refuse what they are there to refuse.
#
# Each case is a small tree with one fault; a check that lets it pass, or that refuses the tree
# without the fault, fails.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0 count=0

tree() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree"
}
put() { # PATH LINE...
    mkdir -p "$(dirname "$work/tree/$1")"
    printf '%s\n' "${@:2}" >"$work/tree/$1"
}
# expect pass|fail WHAT COMMAND...; a failure must name the file in $culprit.
expect() {
    local wanted=$1 what=$2 out got=pass
    shift 2
    count=$((count + 1))
    out=$("$@" 2>&1) || got=fail
    if [ $got != "$wanted" ] || { [ $got = fail ] && [[ $out != *"$culprit"* ]]; }; then
        echo "$what: expected $wanted, got $got: $out"
        bad=1
    fi
}

include() { # pass|fail FILE HEADER
    tree
    put "$2" "#include \"$3\""
    culprit="$2:1:" expect "$1" "$2 includes $3" "$root/scripts/check-includes" "$work/tree"
}
include pass src/core/a.c core/b.h
include pass src/format/a.c core/b.h
include fail src/core/a.c format/b.h
include fail src/format/a.c backend/b.h
include fail src/backend/a.c format/b.h
include pass src/kv/a.c format/b.h
include pass src/kv/a.c backend/backend.h
include fail src/kv/a.c model/b.h
include fail src/model/a.c engine/b.h
include pass src/engine/a.c decode/b.h
include fail src/engine/a.c eval/b.h
include fail src/engine/a.c nowhere/b.h
include pass src/backend/cpu/a.c backend/cpu/b.h
include pass src/backend/cpu/a.c backend/backend.h
include pass src/backend/a.c backend/cpu/b.h
include fail src/backend/cpu/a.c backend/cuda/b.h
include fail src/model/a.c backend/cpu/b.h
include fail src/core/a.c ../format/b.h
include fail src/core/a.c src/core/b.h
include pass src/core/a.c kakeya_build.h
include pass eval/a.c model/b.h
include fail eval/a.c cli/b.h
include pass eval/tasks/a.c eval/reports/b.h
include fail eval/reports/a.c eval/tasks/b.h
include fail eval/texts/a.c eval/reports/b.h
include pass cli/a.c kakeya.h
include pass cli/a.c eval/b.h
include pass cli/a.c train/entry.h
include fail cli/a.c train/trainer.h
include pass cli/a.c own.h
include fail cli/a.c core/b.h
include fail server/a.c eval/b.h
include fail server/a.c core/module.h
include pass server/serve_load.c core/module.h
include fail server/serve_load.c core/b.h
include pass cli/a.c server/serve_entry.h
include fail cli/a.c server/server.h
include fail include/kakeya.h core/b.h

body() { for ((i = 0; i < $1; i++)); do echo "    x++;"; done; }
sizes() { culprit=src/core/a.c expect "$1" "$2" "$root/scripts/check-sizes" "$work/tree"; }
tree; put src/core/a.c 'void f(void) {' "$(body 58)" '}'
sizes pass 'a function of 60 lines'
tree; put src/core/a.c 'static const int t[] = {' "$(body 200)" '};' 'void f(void) {' '}'
sizes pass 'a table of 200 lines'
tree; put src/core/a.c 'static int f(int a,' '             int b) {' "$(body 58)" '}'
sizes fail 'a function of 61 lines'
put scripts/long-functions 'src/core/a.c:f one long switch'
sizes pass 'a long function with a reason'
put scripts/long-functions 'src/core/a.c:f'
culprit=reason expect fail 'a long function without a reason' \
    "$root/scripts/check-sizes" "$work/tree"
tree; put eval/a.c 'void f(void) {' "$(body 118)" '}'
sizes pass 'a function of 120 lines outside src'
tree; put src/backend/cuda/a.cuh '__device__ void f(void) {' "$(body 98)" '}'
sizes pass 'a kernel of 100 lines'
tree; put src/backend/cuda/a.cuh '__device__ void f(void) {' "$(body 99)" '}'
culprit=src/backend/cuda/a.cuh expect fail 'a kernel of 101 lines' \
    "$root/scripts/check-sizes" "$work/tree"
tree; put src/core/a.c "$(body 1201)"
sizes fail 'a file of 1201 lines'
tree; put src/core/a.c "$(printf '/*%97s*/' x)"
sizes fail 'a line of 101 columns'
tree; put src/core/a.c "$(printf '/*%96s*/' é)"
sizes pass 'a line of 100 columns with a two-byte letter'

message() { # pass|fail C-TEXT
    tree
    put cli/flags.c '    {"ctx", "-c"},' '    {"RLIMIT_MEMLOCK", "ulimit -l"},'
    put src/engine/a.c "$2"
    culprit=src/engine/a.c:1: expect "$1" "$2" "$root/scripts/check-messages" "$work/tree"
}
message pass 'kk_fail(err, KK_ECONTEXT, "the context of %d tokens is full: raise `ctx`", n);'
message fail 'kk_fail(err, KK_ECONTEXT, "the context of %d tokens is full: raise -c", n);'
message fail 'kk_fail(err, KK_EINVAL, "none is loaded: -mp");'
message fail '               "rows are not rebuilt there: use --device cpu");'
message fail 'kk_fail(err, KK_EINVAL, "lower `context`");'
message pass 'kk_fail(err, KK_EIO, "no lock: see `RLIMIT_MEMLOCK`");'
message pass 'kk_fail(err, KK_EINVAL, "between -1 and %d: \"a-b\"", x - y); /* as in "raise -c" */'
message pass 'kk_fail(err, KK_EINVAL, "a bias of %g: a number, or -inf", b);'
message pass '/* "use --device cpu" is for the command line. */'

word() { # pass|fail FILE LINE
    tree
    put "$2" "$3"
    culprit=$2:1: expect "$1" "$2: $3" "$root/scripts/check-words" "$work/tree"
}
word fail src/core/a.c '/* Room for one more. */'
word fail src/core/a.c 'static size_t page_room_for(int n) { return n; }'
word fail src/core/a.c 'int x; // turned by RoPE'
word fail src/backend/cuda/a.cuh 'enum { KK_PORTER = 16 };'
word fail src/backend/cuda/a.cu '/* A ring. */ void kk_asker(void); /* the warp */'
word fail tests/unit/a.c '    const int turned = 3;'
word fail cli/a.c 'int32_t n_looks;'
word fail eval/a.c '/* no room */'
word pass eval/a.c 'int64_t reach;'
word fail src/kv/a.c 'int64_t reach;'
word fail docs/a.md 'It runs in two gears.'
word fail README.md 'What is turned by RoPE is rounded.'
word pass src/core/a.c '/* It turned out that a bathroom is reachable, and looks up the way. */'
word pass src/core/a.c 'kk_fail(err, KK_ENOMEM, "no room for \"%s\"", s);'
word pass src/core/a.c '/* Drafts meet the limit and reach the end. */'
word pass tests/unit/a.c 'static void engines_meet_and_reach_the_end(void **state) {'
word pass docs/journal/a.md 'The first kernel had a porter.'
tree; put src/core/a.c '/* A block of' ' * rows that are' ' * turned. */' 'int a;'
culprit=src/core/a.c:3: expect fail 'a word in the third line of a comment' \
    "$root/scripts/check-words" "$work/tree"

checkout() { culprit=big expect "$1" "$2" "$root/scripts/check-checkout" "$work/tree"; }
tree; git -C "$work/tree" init -q; truncate -s 15000000 "$work/tree/big"
git -C "$work/tree" add big; checkout pass 'a file of 15 MB'
truncate -s 15000001 "$work/tree/big"; checkout fail 'a file over 15 MB'
truncate -s 13000000 "$work/tree/big" "$work/tree/b2" "$work/tree/b3" "$work/tree/b4"
git -C "$work/tree" add b2 b3 b4
culprit='52.0 MB' expect fail 'a checkout of 52 MB' "$root/scripts/check-checkout" "$work/tree"

symbols() { # pass|fail CULPRIT C-TEXT
    tree
    put a.c '#include <stdio.h>' '#include <stdlib.h>' "$3"
    (cd "$work/tree" && ${CC:-cc} -O2 -c a.c && ar rc lib.a a.o)
    culprit=$2 expect "$1" "$3" "$root/scripts/check-symbols" "$work/tree/lib.a"
}
symbols pass '' 'int f(char *s) { return snprintf(s, 9, "%d", 3); }'
symbols fail 'a.o: calls abort' 'void f(void) { abort(); }'
symbols fail 'a.o: calls exit' 'void f(void) { exit(1); }'
symbols fail 'a.o: calls getenv' 'char *f(void) { return getenv("HOME"); }'
symbols fail 'a.o: calls puts' 'void f(void) { printf("one line\n"); }'
symbols fail 'a.o: calls stderr' 'void f(void) { fprintf(stderr, "x"); }'

shared() { # pass|fail CULPRIT C-TEXT
    tree
    put a.c "$3"
    put a.h 'KK_API int kk_one(void);' 'KK_API const char *kk_two(int a,' '    int b);'
    (cd "$work/tree" && ${CC:-cc} -fPIC -shared a.c -o lib.so && ar rc lib.a)
    culprit=$2 expect "$1" "$3" "$root/scripts/check-symbols" "$work/tree/lib.a" \
        "$work/tree/lib.so" "$work/tree/a.h"
}
shared pass '' 'void kk_one(void) {} void kk_two(void) {}'
shared fail 'kk_two: declared' 'void kk_one(void) {}'
shared fail 'stray: exported' 'void kk_one(void) {} void kk_two(void) {} void stray(void) {}'

module() { # pass|fail CULPRIT C-TEXT
    tree
    put a.c "$3"
    (cd "$work/tree" && ${CC:-cc} -fPIC -shared a.c -o lib.so)
    culprit=$2 expect "$1" "$3" "$root/scripts/check-symbols" --module "$work/tree/lib.so" kk_a_module
}
module pass '' 'void kk_a_module(void) {} static void own(void) {}'
module fail 'shows kk_a_module kk_open' 'void kk_a_module(void) {} void kk_open(void) {}'
module fail 'not kk_a_module' 'void kk_b_module(void) {}'

echo "$count cases"
exit $bad
