#!/usr/bin/env bash
# sdk_typescript.sh - sdk/typescript compiled and tested against a server with node's own test runner, and
# the examples of its README compiled against its declarations and run.
. "$(dirname "$0")/lib.sh"
sdk=$(cd "$(dirname "$0")/../../sdk/typescript" && pwd)
need_serve
need_tool node tsc
package=$work/node_modules/@kakeya/runtime
mkdir -p "$package"
cp "$sdk/package.json" "$package"
tsc -p "$sdk" --outDir "$package/dist" >"$work/said" 2>&1 || fail "tsc: $(cat "$work/said")"
grep -q "\"version\": \"$("$KAKEYA" --version | sed -n 's/^kakeya \([0-9.]*[0-9]\).*/\1/p;q')\"" "$sdk/package.json" ||
    fail "package.json has another version than the program"
KAKEYA_SDK=$package/dist timeout 120 node --test "$sdk/test/client.test.mjs" >"$work/said" 2>&1 ||
    fail "$(cat "$work/said")"
lacks "$(cat "$work/said")" Warning

# ---- README.md
awk -v folder="$work" '/^```ts$/ { n++; on = 1; next } /^```$/ { on = 0 } on { print > (folder "/example" n ".mts") }' \
    "$sdk/README.md"
[ -f "$work/example2.mts" ] || fail "README.md has no examples"
"$KAKEYA" serve --port 0 -t 1 2>"$work/server" &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$work"' EXIT
for _ in $(seq 600); do grep -q "serve: ready:" "$work/server" && break; sleep 0.1; done
address=127.0.0.1:$(sed -n 's/.*listening on http:.*:\([0-9]*\)$/\1/p' "$work/server")
cd "$work" || exit 1
sed -i "s/localhost:8080/$address/" example*.mts
tsc --target es2022 --module es2022 --moduleResolution node --lib es2022,dom --strict example*.mts \
    >said 2>&1 || fail "README.md: $(cat said)"
for example in example1 example2; do
    timeout 60 node $example.mjs >said 2>&1 || fail "$example of README.md: $(cat said)"
done
kill $server && wait $server
finish
