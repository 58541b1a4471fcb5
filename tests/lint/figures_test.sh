#!/usr/bin/env bash
# figures_test.sh - scripts/check-figures finds what is wrong in a document, and mends figures.
#
# Each case is a document of a line or two beside one report; what must be refused must be refused
# for the reason that is named.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0 count=0
mkdir -p "$work/bench/results" "$work/docs/journal" "$work/models/m" "$work/scripts"
cat >"$work/bench/results/r.json" <<'END'
{"machine": {"cpu": "AMD EPYC", "cores": 2}, "synthetic": true,
 "arms": {"plain": {"tok_s": 100.04, "speedup": null, "withheld": "it is the baseline"},
          "auto": {"tok_s": 217.2, "speedup": 2.1714, "withheld": null},
          "dflash": {"tok_s": 104.0, "speedup": null, "withheld": "fewer than 5 samples"}},
 "share": 0.837, "none": null, "bytes": {"kv.full": 320464776, "kv": {"full": 1}},
 "twice": [{"same": 1, "ms": 5}, {"same": 1, "ms": 6}], "kl": 0.0000874, "big": 25269.5,
 "rows": [{"rows": 1, "ms": 2.0}, {"rows": 4, "ms": 4.43}, {"policy": "exact bf16", "ms": 9}]}
END
cp "$work/bench/results/r.json" "$work/models/m/report.json"
echo '{"share": 0.5}' >"$work/bench/results/other.json"

check() { python3 -I -S "$root/scripts/check-figures" "$@" "$work" 2>&1; }
say() { count=$((count + 1)); echo "$1"; bad=1; }
passes() { # LINE...
    count=$((count + 1))
    printf '%s\n' "$@" >"$work/README.md"
    out=$(check) || say "refused, and is right: $*: $out"
}
refuses() { # REASON LINE...
    count=$((count + 1))
    printf '%s\n' "${@:2}" >"$work/README.md"
    if out=$(check); then
        say "passes, and should not ($1): ${*:2}"
    elif [[ $out != *"$1"* ]]; then
        say "refused for another reason than '$1': $out"
    fi
}
becomes() { # AFTER BEFORE
    count=$((count + 1))
    echo "$2" >"$work/README.md"
    check --update >/dev/null || say "--update failed on: $2"
    [ "$(cat "$work/README.md")" = "$1" ] || say "'$2' became '$(cat "$work/README.md")', not '$1'"
    check >/dev/null || say "what --update wrote does not pass: $1"
}

# Digits: what is shown must be the value, rounded there.
passes 'it is 2.17x<!--= r.json arms.auto.speedup --> as fast'
passes 'it is **2.2x**<!--= r.json arms.auto.speedup -->'
passes 'it is **2.2x<!--= r.json arms.auto.speedup -->**'
refuses 'README.md:1: 2.18 stands where' 'it is 2.18x<!--= r.json arms.auto.speedup -->'
refuses '2.3 stands' 'it is 2.3x<!--= r.json arms.auto.speedup -->'
refuses '2.16 stands' '' 'it is 2.16x<!--= r.json arms.auto.speedup -->'
passes '84 %<!--= r.json share --> of it' '83.7 %<!--= r.json share -->'
refuses '83 stands' '83 %<!--= r.json share -->'
passes '320 MB<!--= r.json bytes.kv.full / 1e6 -->' '320,464,776<!--= r.json bytes.kv.full -->'
refuses '321 stands' '321 MB<!--= r.json bytes.kv.full / 1e6 -->'
passes '8.7e-5<!--= r.json kl -->'
refuses '8.8e-5 stands' '8.8e-5<!--= r.json kl -->'
passes '25,300 tok/s<!--= r.json big to 100 -->' '25.3k tok/s<!--= r.json big / 1e3 -->'
refuses '25,300 stands' '25,300 tok/s<!--= r.json big -->'

# Paths.
passes '4.43 ms<!--= r.json rows[rows=4].ms -->' '2 ms<!--= r.json rows[0].ms -->' \
    '9 ms<!--= r.json rows[policy=exact_bf16].ms -->' '9 ms<!--= r.json max rows[*].ms -->' \
    '3<!--= r.json count rows[*].ms -->' '2.17x<!--= models/m/report.json arms.auto.speedup -->'
passes '2.2<!--= r.json rows[rows=4].ms / ( rows[0].ms + 0 ) -->' '19.6<!--= r.json rows[2].ms / ( rows[0].ms - 1.54 ) -->'
refuses 'not closed' '2.2<!--= r.json rows[rows=4].ms / ( rows[0].ms -->'
refuses 'no entry [rows=5]' '4.43 ms<!--= r.json rows[rows=5].ms -->'
refuses 'has 2 entries [same=1]' '5 ms<!--= r.json twice[same=1].ms -->'
refuses 'has 3 entries, not [7]' '4.43 ms<!--= r.json rows[7].ms -->'
refuses "no member 'speed'" '2.17x<!--= r.json arms.auto.speed -->'
refuses 'there is no report gone.json' '2.17x<!--= gone.json arms.auto.speedup -->'
refuses 'stands for 3 values' '2 ms<!--= r.json rows[*].ms -->'
refuses 'is no path' '2 ms<!--= r.json rows[0]..ms -->'
refuses 'is no operator' '84 %<!--= r.json share of -->'
refuses 'no figure before it' 'about<!--= r.json share -->'
refuses 'is not a number' '2<!--= r.json machine.cpu -->'
refuses 'no member of it' '2<!--= r.json -->'

# What a report withholds may not be said, and not be made of its rates either.
refuses 'withheld: fewer than 5 samples' '1.04x<!--= r.json arms.dflash.speedup -->'
refuses 'withholds: fewer than 5 samples' \
    '1.04x<!--= r.json arms.dflash.tok_s / arms.plain.tok_s -->'
passes '2.17x<!--= r.json arms.auto.tok_s / arms.plain.tok_s -->'
passes '104 tok/s<!--= r.json arms.dflash.tok_s -->'
refuses 'none is null' '2<!--= r.json none -->'
passes '1.7<!--= r.json share / other.json#share -->' '33.7 %<!--= r.json share - other.json#share -->'

# Claims that are not figures.
passes 'an EPYC<!--= r.json machine.cpu is AMD EPYC --> <!--= r.json synthetic is true -->'
passes 'no gain is claimed<!--= r.json arms.dflash.speedup is null -->'
refuses 'is 2.1714, not null' 'no gain is claimed<!--= r.json arms.auto.speedup is null -->'
refuses 'is AMD EPYC, not Xeon' 'a Xeon<!--= r.json machine.cpu is Xeon -->'
refuses 'is true, not false' 'real weights<!--= r.json synthetic is false -->'
passes 'faster<!--= r.json arms.auto.tok_s above arms.plain.tok_s -->'
refuses '217.2 is not below 100.04' 'slower<!--= r.json arms.auto.tok_s below arms.plain.tok_s -->'

# Figures that have no mark.
refuses "'14 ms' has no mark" '| a | b |' '|---|---|' '| x | 14 ms |'
refuses "'14 %' has no mark" '| a | b |' '|---|---|' '| 84 %<!--= r.json share --> | 14 % |'
passes '| a (ms) 14 ms | b |' '|---|---|' '| x | 4 x 128 |'
refuses "'14 tok/s' has no mark" 'It makes 14 tok/s.'
refuses "'1.04x' has no mark" 'It is 1.04x as fast.'
passes 'It has 4x the rows, within 1 % and 3 ms.' '```' '14 tok/s' '```' '    14 tok/s' '`14 tok/s`'
passes 'It asked for 400 tok/s<!--= none: a limit --> at least.'
passes '| a | b |' '|---|---|' '| x | 14 ms, 15 ms, as asked <!--= none: limits --> |'
passes '<!--= none: limits -->' '| a | b |' '|---|---|' '| x | 14 ms |'
refuses "'14 ms' has no mark" '<!--= none: limits -->' 'text' '' '| a |' '|---|' '| 14 ms |'
refuses 'gives no reason' '14 tok/s<!--= none: -->'
# What was measured has a report, or stands in docs/journal.
refuses 'was measured' '14 tok/s<!--= none: no report is kept -->'
refuses 'was measured' '0.84 ms<!--= none: read by drafts_gpu_test -->'
refuses 'was measured' '10 of 12 ms<!--= none: timed once, while other work ran -->'
refuses 'was measured' '<!--= none: measured on another day -->' '| a | b |' '|---|---|' '| x | 14 ms |'
echo '1.04x as fast' >"$work/docs/journal/past.md"
passes 'nothing'
for place in docs/a.md models/m/README.md bench/README.md DESIGN.md; do
    echo '1.04x as fast' >"$work/$place"
    refuses "$place:1: '1.04x' has no mark" 'nothing'
    rm "$work/$place"
done

# Links.
passes 'see [it](models/m/report.json), [there](https://example.org/x) and `[no](gone.md)`'
refuses 'README.md:1: there is no docs/gone.md' 'see [it](docs/gone.md#part)'

# --update: the reports' values, with the digits that stood there.
becomes '**2.17x**<!--= r.json arms.auto.speedup --> and 2.2<!--= r.json arms.auto.speedup -->' \
    '**1.62x**<!--= r.json arms.auto.speedup --> and 1.6<!--= r.json arms.auto.speedup -->'
becomes '84 %<!--= r.json share -->' '7 %<!--= r.json share -->'
becomes '25,300 tok/s<!--= r.json big to 100 -->' '900 tok/s<!--= r.json big to 100 -->'
becomes '8.7e-5<!--= r.json kl -->' '1.2e-3<!--= r.json kl -->'
becomes '0.0001<!--= r.json kl -->' '0.02<!--= r.json kl -->'
becomes '| 4.430 ms<!--= r.json rows[rows=4].ms --> | 2<!--= r.json rows[0].ms --> |' \
    '| 1.000 ms<!--= r.json rows[rows=4].ms --> | 5<!--= r.json rows[0].ms --> |'
count=$((count + 1))
echo '1.04x<!--= r.json arms.dflash.speedup --> 1 %<!--= r.json share -->' >"$work/README.md"
check --update >/dev/null && say '--update hides what is withheld'
[ "$(cat "$work/README.md")" = \
    '1.04x<!--= r.json arms.dflash.speedup --> 84 %<!--= r.json share -->' ] ||
    say "--update made of a withheld figure: $(cat "$work/README.md")"

# A report that the gate refuses may not be quoted.
mkdir "$work/build"
printf '#!/bin/sh\ncase $3 in */r.json) echo "$3: RATE_RECOUNT: no"; exit 1 ;; esac\n' \
    >"$work/build/kakeya"
chmod +x "$work/build/kakeya"
refuses 'refuses it: RATE_RECOUNT: no' '84 %<!--= r.json share -->'
passes '50 %<!--= other.json share -->'

# A picture that is not what its script draws.
printf 'import sys\nprint("old.svg: out of date")\nsys.exit("--check" in sys.argv)\n' \
    >"$work/scripts/plot-it"
refuses 'old.svg: out of date' 'nothing'

[ $bad -eq 0 ] && echo "$count cases"
exit $bad
