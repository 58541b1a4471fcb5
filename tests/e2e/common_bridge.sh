# shellcheck shell=bash
# common_bridge.sh - sourced by the tests of the bridge: a bus, keys, a runner, and a program that
# stands in for kakeya where a test needs one that hangs, floods or deletes.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_tool git ssh-keygen python3

export HOME=$work/home XDG_CONFIG_HOME=$work/config
export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t
mkdir "$HOME"
bus=$work/bus.git
prefix=kakeya-bridge/
git init -q --bare "$bus"
for who in ann eve; do ssh-keygen -q -t ed25519 -N "" -C $who -f "$work/$who"; done
echo "ann $(cat "$work/ann.pub")" >"$work/signers"

# config NAME [MEMBERS] - the configuration of a runner, with members of JSON more.
config() {
    cat >"$work/$1.json" <<JSON
{"name": "$1", "allowed_signers": "$work/signers", "unsigned": ["bob"], "program": "$work/fake",
 "environment": ["FAKE", "REAL", "BUS", "SPOOR", "ASAN_OPTIONS", "UBSAN_OPTIONS"]${2:+, }${2:-}}
JSON
}

# What stands in for kakeya does what $FAKE says, and leaves its checks of reports to the real one.
export REAL=$KAKEYA BUS=$bus SPOOR=$work/spoor
cat >"$work/fake" <<'SH'
#!/usr/bin/env bash
echo "$@" >>"$SPOOR"
[ "$1" = report ] && exec "$REAL" "$@"
case ${FAKE:-} in
hang) sleep 300 & echo $! >"$SPOOR.child"; wait ;;
stubborn) trap '' TERM; sleep 300 & echo $! >"$SPOOR.child"; while :; do sleep 1; done ;;
leave) sleep 300 & echo $! >"$SPOOR.child"; echo left ;;
flood) yes ;;
fill) for i in $(seq 400); do head -c 20000 /dev/zero >"results/f$i"; done; sleep 300 ;;
large) head -c 9000000 /dev/zero >results/large; echo not reached ;;
heavy) head -c 300000 /dev/urandom | base64 >results/heavy.txt ;;
delete) git -C "$BUS" for-each-ref --format='%(refname)' refs/heads | xargs -n 1 git -C "$BUS" update-ref -d ;;
hide) mv "$BUS" "$BUS.away" ;;
slow) sleep 1 ;;
down) echo result >results/good.txt; echo 6 >"$BUS.down" ;;
fail) echo "the device mlx is not here" >&2; exit 3 ;;
die) kill -SEGV $$ ;;
lie) echo '{"kind": "bench", "schema": 3}' >results/lie.json ;;
env) env >results/env.txt ;;
esac
exit 0
SH
chmod +x "$work/fake"

# ask PRESET OPTION... - a request of ann's, signed; its branch goes to $branch.
ask() {
    kakeya bridge request "$@" --requested-by ann --key "$work/ann" --ref test --remote "$bus"
    [ "$code" -eq 0 ] || fail "request $*: exit $code: $err"
    branch=$out
}

# runner NAME OPTION... - one look of the runner at the bus, with a state of its own.
runner() {
    local name=$1
    shift
    kakeya bridge run "$bus" --config "$work/$name.json" --state "$work/state-$name" "$@"
}

# fetched CODE [PART...] - the result of $branch, which fetch ends with that code for.
fetched() {
    local want=$1
    shift
    rm -rf "$work/got"
    kakeya bridge fetch "$branch" --remote "$bus" -o "$work/got"
    [ "$code" -eq "$want" ] || fail "fetch $branch: exit $code, not $want: $out $err"
    has "$out" "$@"
}

# push_raw BRANCH FILE=SOURCE... - a branch as nobody's client would make it.
push_raw() {
    local to=$1 pair tree=$work/raw
    shift
    rm -rf "$tree"
    git init -q "$tree"
    for pair in "$@"; do
        mkdir -p "$tree/$(dirname "${pair%%=*}")"
        cp -P "${pair#*=}" "$tree/${pair%%=*}"
    done
    git -C "$tree" add -f -A
    git -C "$tree" commit -q --allow-empty -m raw
    git -C "$tree" push -q "$bus" "HEAD:refs/heads/$to" || fail "push of $to"
}

# manifest PYTHON - a manifest of ann's for the probe, changed by a statement about m; its nonce goes
# to $nonce and its file to $manifest.
serial=0
manifest() {
    serial=$((serial + 1))
    nonce=test-$serial
    manifest=$work/manifest-$serial.json
    python3 - "$nonce" "${1:-pass}" >"$manifest" <<'PY'
import json, sys
m = {"schema_version": 2, "preset": "mlx-env-probe", "params": {}, "ref": "test",
     "requested_by": "ann", "nonce": sys.argv[1], "created": 1}
exec(sys.argv[2])
print(json.dumps(m))
PY
    rm -f "$manifest.sig"
    ssh-keygen -q -Y sign -n kakeya-bridge -f "$work/ann" "$manifest" 2>/dev/null
}

# send [BRANCH] - the manifest and its signature, where there is one, as a branch.
send() {
    local sig=()
    branch=${1:-${prefix}mlx-env-probe-$nonce}
    [ -f "$manifest.sig" ] && sig=(".kakeya-bridge/request.json.sig=$manifest.sig")
    push_raw "$branch" ".kakeya-bridge/request.json=$manifest" "${sig[@]}"
}

# expect PART... - notes that $branch is to be refused with these words in its reason; all that were
# noted are looked at by refused_all, after one pass of the runner.
expect() {
    printf '%s' "$branch" >>"$work/expected"
    printf '\t%s' "$@" >>"$work/expected"
    printf '\n' >>"$work/expected"
}

refused_all() {
    rm -f "$SPOOR"
    runner m4
    [ "$code" -eq 2 ] || fail "the runner ended with $code, not 2: $err"
    [ ! -f "$SPOOR" ] || fail "something ran: $(cat "$SPOOR")"
    exits 0 bridge status --remote "$bus" --json
    printf '%s' "$out" >"$work/status"
    python3 - "$work/status" "$work/expected" >"$work/said" <<'PY' || fail "refusals: $(cat "$work/said")"
import json, sys
entries = {e["branch"]: e for e in json.load(open(sys.argv[1]))["requests"]}
wrong = 0
for line in open(sys.argv[2]):
    branch, *parts = line.rstrip("\n").split("\t")
    summary = entries[branch].get("summary", {})
    if summary.get("state") != "refused" or summary.get("exit_code") != 2 or \
            [p for p in parts if p not in summary["reason"]]:
        print(branch, parts, summary)
        wrong += 1
sys.exit(wrong > 0)
PY
    same "$(wc -l <"$work/expected")" "$1" "requests that were to be refused"
}

# sweep - an empty bus.
sweep() {
    git -C "$bus" for-each-ref --format='delete %(refname)' refs/heads | git -C "$bus" update-ref --stdin
}

# refused PART... - the runner refuses $branch for that reason, and has run nothing.
refused() {
    rm -f "$SPOOR"
    runner m4
    [ "$code" -eq 2 ] || fail "$branch: the runner ended with $code, not 2: $err"
    fetched 1 refused "$@"
    [ ! -f "$SPOOR" ] || fail "$branch was refused, and ran: $(cat "$SPOOR")"
}

# gone - the child that a program left is not there any more.
gone() {
    local child
    child=$(cat "$SPOOR.child")
    for _ in $(seq 600); do
        kill -0 "$child" 2>/dev/null || return 0
        # One that has ended may wait for somebody to notice.
        case $(cat "/proc/$child/stat" 2>/dev/null) in *") Z "*) return 0 ;; esac
        sleep 0.1
    done
    kill -9 "$child"
    fail "process $child goes on"
}
