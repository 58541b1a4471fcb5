#!/usr/bin/env bash
# README.md: what it shows as output is what its commands print, and its C is the example that the
# build compiles.
. "$(dirname "$0")/lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)

# block LANGUAGE - the first fenced block of that language.
block() { awk -v open="\`\`\`$1" '$0 == open { on = 1; next } on && /^```/ { exit } on' "$root/README.md"; }

block c >"$work/readme.c"
cmp -s "$work/readme.c" "$root/docs/examples/complete.c" ||
    fail "the C of README.md is not docs/examples/complete.c"

# Lines behind `$ ` are run in one folder, one after the other.
cd "$work" || exit 1
block console >shown
[ "$(grep -c '^\$ ' shown)" -ge 3 ] || fail "README.md shows no commands"
: >printed
while read -r line; do
    printf '$ %s\n' "$line" >>printed
    bash -c "${line//build\/kakeya/\"\$KAKEYA\"}" >>printed 2>err </dev/null ||
        fail "$line: $(cat err)"
done < <(sed -n 's/^\$ //p' shown)
diff shown printed >&2 || fail "README.md shows other output than its commands print"
finish
