#!/usr/bin/env bash
# bridge_faults.sh - a runner among hostile requests, other runners and kills: what is refused, what is
# ended, and what is said of it.
. "$(dirname "$0")/common_bridge.sh"
config m4

# ---- a request as it should be, of both versions
manifest
send
FAKE=env runner m4
same "$code" 0 "an honest request"
fetched 0 "done on m4"
has "$(cat "$work/got/results/env.txt")" "PATH=" "HOME="
lacks "$(cat "$work/got/results/env.txt")" GIT_
manifest 'm["schema_version"] = 1; del m["created"]'
send
runner m4
fetched 0 "done on m4"

# ---- every way to be refused
manifest; rm "$manifest.sig"; send; expect "not signed" "ann may not ask unsigned"
manifest 'm["requested_by"] = "bob"'; send; expect "the signature is not that of bob"
manifest; rm "$manifest.sig"; ssh-keygen -q -Y sign -n kakeya-bridge -f "$work/eve" "$manifest" 2>/dev/null
send; expect "the signature is not that of ann"
manifest; rm "$manifest.sig"; ssh-keygen -q -Y sign -n file -f "$work/ann" "$manifest" 2>/dev/null
send; expect "the signature is not that of ann"
manifest; sed -i 's/"created": 1/"created": 2/' "$manifest"; send; expect "the signature is not that of ann"
manifest; echo no signature >"$manifest.sig"; send; expect "the signature is not that of ann"
manifest; send "${prefix}mlx-env-probe-other"; expect "the branch is not that of"
manifest; send "${prefix}parity-$nonce"; expect "the branch is not that of"
manifest 'm["preset"] = "rm"'; send; expect "there is no preset 'rm'"
manifest 'm["preset"] = "pytest-path"'; send; expect "runs nothing that a request brings"
manifest 'm["params"] = {"n_samples": 1}'; send; expect "has no parameter 'n_samples'"
manifest 'm["params"] = []'; send; expect "params"
manifest 'm["preset"] = "eval-kv"; m["params"] = {"n_samples": 51}'; send "${prefix}eval-kv-$nonce"; expect "n_samples is 51"
manifest 'm["preset"] = "eval-kv"; m["params"] = {"n_samples": "1"}'; send "${prefix}eval-kv-$nonce"; expect "not a whole number"
manifest 'm["preset"] = "eval-kv"; m["params"] = {"n_samples": True}'; send "${prefix}eval-kv-$nonce"; expect "not a whole number"
manifest 'm["preset"] = "parity"; m["params"] = {"device": "cpu; rm"}'; send "${prefix}parity-$nonce"; expect "device is 'cpu; rm'"
manifest 'm["preset"] = "parity"'; send "${prefix}parity-$nonce"; expect 'has no "cases"'
manifest 'm["preset"] = "k3-evidence-gate"'; send "${prefix}k3-evidence-gate-$nonce"; expect 'has no "reports"'
manifest 'm["command"] = "id"'; send; expect 'no member "command"'
manifest 'm["schema_version"] = 3'; send; expect "schema_version is 3"
manifest 'm["schema_version"] = 1'; send; expect 'no member "created"'
manifest 'del m["nonce"]'; send; expect "nonce"
manifest 'm["nonce"] = "../../x"'; send; expect "nonce"
manifest 'm["ref"] = ""'; send; expect "ref"
manifest 'm["requested_by"] = "-oProxyCommand=x"'; send; expect "requested_by"
manifest; echo '{"schema_version": 2, "schema_version": 2}' >"$manifest"; send; expect "no JSON"
manifest; echo '[1]' >"$manifest"; send; expect "no JSON object"
manifest; head -c 20000 /dev/zero | tr '\0' ' ' >"$manifest"; send; expect "the limit is"
manifest; head -c 20000 /dev/zero >"$manifest.sig"; send; expect "the limit is"
manifest; printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n' >"$manifest"; send; expect "git LFS"
manifest; ln -sf /etc/passwd "$work/link"
branch=${prefix}mlx-env-probe-$nonce; push_raw "$branch" ".kakeya-bridge/request.json=$work/link"; expect "not a plain file"
branch=${prefix}mlx-env-probe-empty; push_raw "$branch" "other=$manifest"; expect "there is no .kakeya-bridge/request.json"
manifest 'm["a" * 39 + "\u00e9"] = 1'; send; expect 'no member "aaaa'
refused_all 33
sweep
manifest 'm["requested_by"] = "bob"'; rm "$manifest.sig"; send; runner m4; fetched 0 done
config m4 '"presets": ["parity"]'
manifest; send; refused "does not offer mlx-env-probe"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n' >"$work/model.gguf"
config m4 "\"paths\": {\"model\": \"$work/model.gguf\"}"
manifest; send; refused "pointer of git LFS"
config m4 "\"paths\": {\"model\": \"$work/nowhere\"}"
manifest; send; refused "is not there"
cat >"$work/m4.json" <<<"{\"name\": \"m4\", \"program\": \"$work/fake\"}"
manifest; send; refused "knows no signers"
config m4
# A branch with a name that is none of ours is left alone.
manifest; send "${prefix}deeper/branch"; runner m4; same "$code" 0; [ -z "$err" ] || fail "said: $err"

# ---- a nonce is used once: by the bus, by the runner, whatever is deleted; also the very same commit
export GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z
manifest; send; runner m4; fetched 0 done
send "${prefix}mlx-env-probe-$nonce-again"; refused "was used before"
send "${prefix}mlx-env-probe-$nonce-more"
config m5
rm -f "$SPOOR"; runner m5; same "$code" 2 "another runner"; [ ! -f "$SPOOR" ] || fail "a nonce ran twice"
git -C "$bus" update-ref -d "refs/kakeya-bridge/nonces/$nonce"
send "${prefix}mlx-env-probe-$nonce-third"; refused "was used before"
unset GIT_AUTHOR_DATE GIT_COMMITTER_DATE

# A runner that was killed before its claim takes the same commit again, and no other.
manifest; send; git -C "$bus" rev-parse "refs/heads/$branch" | tr -d '\n' >"$work/state-m4/nonces/$nonce"
runner m4; fetched 0 done
manifest; send; git -C "$bus" rev-parse "refs/heads/$branch^{tree}" | tr -d '\n' >"$work/state-m4/nonces/$nonce"
refused "was used before"

# ---- a request for one runner is left to it
manifest 'm["runner"] = "m5"'; send
rm -f "$SPOOR"; runner m4; same "$code" 0; [ ! -f "$SPOOR" ] || fail "m4 took what is for m5"
runner m5; fetched 0 "done on m5"

# ---- clocks: nothing depends on when who asks thinks it is
for created in 0 -5000000000 9000000000000; do
    manifest "m['created'] = $created"; send; runner m4; fetched 0 done
done

# ---- limits end the whole group
config m4 '"limits": {"minutes": 0.02}'
for how in hang stubborn; do
    manifest; send; FAKE=$how runner m4
    same "$code" 1 "$how"; fetched 1 failed timeout; gone
done
config m4 '"limits": {"output_bytes": 100000, "disk_bytes": 4000000, "result_bytes": 200000}'
manifest; send; FAKE=leave runner m4; fetched 0 done; gone
manifest; send; FAKE=flood runner m4; fetched 1 failed "too much output"
[ "$(wc -c <"$work/got/logs/mlx-env-probe-0.log")" -eq 100000 ] || fail "the log is not cut at the limit"
manifest; send; FAKE=fill runner m4; fetched 1 failed "too much on disk"
manifest; send; FAKE=large runner m4; fetched 1 failed
[ ! -e "$work/got/results/large" ] || fail "a file over the limit came back"
manifest; send; FAKE=heavy runner m4; fetched 1 failed
config m4
manifest; send; FAKE=fail runner m4; fetched 1 failed "exit 3" "the device mlx is not here"
manifest; send; FAKE=die runner m4; fetched 1 failed "signal 11"
manifest; send; FAKE=lie runner m4; fetched 1 failed "gate"
[ ! -e "$work/got/results/lie.json" ] || fail "a report that the gate refused came back"
has "$(cat "$work/got/logs/gate-lie.json.log")" "lie.json"
sed -i "s|$work/fake|$work/nothing|" "$work/m4.json"
manifest; send; runner m4; fetched 1 failed "cannot start"
config m4

sweep
# ---- a runner killed in the middle: what it ran ends, and the next one reports it
manifest; send; rm -f "$SPOOR" "$SPOOR.child"
FAKE=hang "$KAKEYA" bridge run "$bus" --config "$work/m4.json" --state "$work/state-m4" -q &
pid=$!
for _ in $(seq 100); do [ -s "$SPOOR.child" ] && break; sleep 0.1; done
fetched 2 "not finished"
runner m4; same "$code" 1 "a second runner in the same folder"; has "$err" "another runner works in"
runner m5; same "$code" 0 "another runner leaves the claim alone"
sleep 1.2
runner m5; same "$code" 0 "and still does"
kill -9 $pid; wait $pid 2>/dev/null
gone
runner m4; same "$code" 1; fetched 1 interrupted "the runner ended while it carried this out"
rm -f "$SPOOR"; runner m4; same "$code" 0; [ ! -f "$SPOOR" ] || fail "what was interrupted ran again"
# Asked to end, it says so itself.
manifest; send; rm -f "$SPOOR.child"
FAKE=hang "$KAKEYA" bridge run "$bus" --watch --config "$work/m4.json" --state "$work/state-m4" -q &
pid=$!
for _ in $(seq 100); do [ -s "$SPOOR.child" ] && break; sleep 0.1; done
kill -TERM $pid; wait $pid; same $? 143 "a runner that was asked to end"
gone; fetched 1 interrupted stopped
# Of a runner that is not heard of again, another reports, by its own clock.
sweep; manifest; send; rm -f "$SPOOR.child"
config m6 '"limits": {"minutes": 0.02}'
FAKE=stubborn "$KAKEYA" bridge run "$bus" --config "$work/m6.json" --state "$work/state-m6" -q &
pid=$!
for _ in $(seq 100); do [ -s "$SPOOR.child" ] && break; sleep 0.1; done
kill -9 $pid; wait $pid 2>/dev/null; gone
runner m5 --lost 0; same "$code" 0 "seen for the first time"
sleep 2
runner m5 --lost 0; same "$code" 1; fetched 1 interrupted "not heard of again"

# ---- a branch that vanishes is not made again
manifest; send; FAKE=delete runner m4
has "$err" "the branch is gone or was moved"; same "$code" 0
same "$(git -C "$bus" for-each-ref refs/heads | wc -l)" 0 "branches"
fetched 3 "no such branch"
# A bus that cannot be reached gets the result later.
manifest; send; FAKE=hide runner m4
has "$err" "is kept until the bus is reached"
mv "$bus.away" "$bus"; fetched 2 "not finished"
rm -f "$SPOOR"; runner m4; fetched 0 "done on m4"; [ ! -f "$SPOOR" ] || fail "a kept result ran again"
# A result that cannot be pushed, while all else works, is kept too, and not taken for interrupted.
cat >"$work/ssh" <<'SH'
#!/usr/bin/env bash
for command; do :; done
case $command in git-receive-pack*)
    left=$(cat "$BUS.down" 2>/dev/null || echo 0)
    [ "$left" -gt 0 ] && { echo $((left - 1)) >"$BUS.down"; echo "error: RPC failed; HTTP 413" >&2; exit 1; } ;;
esac
exec sh -c "$command"
SH
chmod +x "$work/ssh"
sweep; manifest; send; rm -f "$SPOOR"
export GIT_SSH_COMMAND=$work/ssh GIT_SSH_VARIANT=simple
for _ in 1 2 3; do
    FAKE=down kakeya bridge run "ssh://h$bus" --config "$work/m4.json" --state "$work/state-m4"
done
unset GIT_SSH_COMMAND GIT_SSH_VARIANT
fetched 0 "done on m4"
has "$(cat "$work/got/results/good.txt")" result
same "$(wc -l <"$SPOOR")" 1 "runs of a request whose result was kept"
# One that it never takes is given up in the end, and that is reported in its place.
cat >"$work/ssh" <<'SH'
#!/usr/bin/env bash
for command; do :; done
case $command in git-receive-pack*)
    git -c receive.maxInputSize=200000 receive-pack "$BUS"; exit ;;
esac
exec sh -c "$command"
SH
sweep; manifest; send; rm -f "$SPOOR"
config m4 '"limits": {"unsent_minutes": 0.001}'
export GIT_SSH_COMMAND=$work/ssh GIT_SSH_VARIANT=simple
for _ in 1 2; do
    FAKE=heavy kakeya bridge run "ssh://h$bus" --config "$work/m4.json" --state "$work/state-m4"
    sleep 1.2
done
has "$err" "the remote did not take the result"
same "$code" 1 "a result that was given up"
kakeya bridge run "ssh://h$bus" --config "$work/m4.json" --state "$work/state-m4"
lacks "$err" "kept" "did not take"; same "$code" 0 "after it was given up"
unset GIT_SSH_COMMAND GIT_SSH_VARIANT
config m4
fetched 1 failed "the remote did not take the result"
same "$(wc -l <"$SPOOR")" 1 "runs of a request whose result was given up"
# A remote that declines is not one where somebody was first.
hook=$bus/hooks/pre-receive
printf '#!/bin/sh\necho "these references are refused" >&2\nexit 1\n' >"$hook"
chmod +x "$hook"
manifest; mv "$hook" "$work/hook"; send; mv "$work/hook" "$hook"
runner m4; has "$err" "these references are refused"; lacks "$err" "another runner was first"
rm "$hook"
runner m4; fetched 0 "done on m4"
# A branch of very many files is refused once, not by each runner in turn.
sweep; rm -rf "$work/raw"; git init -q "$work/raw"; mkdir "$work/raw/many"
(cd "$work/raw/many" && seq 2001 | xargs touch)
git -C "$work/raw" add -A; git -C "$work/raw" commit -q -m many
branch=${prefix}many-1; git -C "$work/raw" push -q "$bus" "HEAD:refs/heads/$branch"
for _ in 1 2; do runner m4; runner m5; done
same "$(git -C "$bus" rev-list --count "refs/heads/$branch")" 2 "commits on a branch of many files"
fetched 1 refused
sweep
# It is not reached at all: a look fails, a watch goes on.
mv "$bus" "$bus.away"
runner m4; same "$code" 1 "no bus"
mv "$bus.away" "$bus"

sweep
# ---- two runners on one bus: each request is carried out once
rm -f "$SPOOR"
for _ in 1 2 3 4 5 6 7 8; do ask mlx-env-probe; echo "$branch" >>"$work/asked"; done
for one in m4 m5; do
    "$KAKEYA" bridge run "$bus" --watch --interval 1 --config "$work/$one.json" --state "$work/state-$one" \
        --json >"$work/$one.counts" 2>/dev/null &
    pids="${pids:-} $!"
done
while read -r branch; do
    kakeya bridge fetch "$branch" --remote "$bus" --wait 60 --poll-interval 1 -o "$work/both"
    same "$code" 0 "$branch"
done <"$work/asked"
# shellcheck disable=SC2086  # two numbers
kill -TERM $pids; wait $pids
same "$(wc -l <"$SPOOR")" 8 "runs of eight requests by two runners"
python3 - "$work/m4.counts" "$work/m5.counts" <<'PY' || fail "the runners count otherwise"
import json, sys
a, b = (json.load(open(p)) for p in sys.argv[1:])
sys.exit(not (a["done"] + b["done"] == 8 and a["failed"] + b["failed"] == 0))
PY

# ---- what comes back is looked at too
printf '{"state": "done", "exit_code": 0}' >"$work/summary"
branch=${prefix}forged-1; ln -sf /etc/passwd "$work/link"; echo x >"$work/x"
push_raw "$branch" ".kakeya-bridge/summary.json=$work/summary" "results/.hidden=$work/x" "results/a/b=$work/x" \
    "elsewhere=$work/x"
fetched 0 done
same "$(cd "$work/got" && find . -type f | sort | tr '\n' ' ')" "./summary.json " "files of a forged result"
branch=${prefix}forged-2; push_raw "$branch" ".kakeya-bridge/summary.json=$work/summary" "results/link=$work/link"
fetched 1; has "$err" "not a plain file"
branch=${prefix}forged-3; push_raw "$branch" ".kakeya-bridge/summary.json=$work/summary" "results/p=$work/model.gguf"
fetched 1; has "$err" "git LFS"
branch=${prefix}forged-4; push_raw "$branch" ".kakeya-bridge/summary.json=$work/x"
fetched 1 "without a summary"
finish
