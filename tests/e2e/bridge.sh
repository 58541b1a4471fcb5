#!/usr/bin/env bash
# bridge.sh - whole requests through a repository on this machine, and every preset as a command line
# that the program takes.
. "$(dirname "$0")/common_bridge.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)

# ---- setup ends with a self-test, may be run again, and doctor has nothing to add
exits 0 bridge setup --name m4 --remote "$bus" --signer "ann=$work/ann.pub" \
    --case "$KK_TEST_DATA/parity/dense" --case "$KK_TEST_DATA/parity/moe"
has "$out" "self-test" "in the executor" "is written" "1 added"
# The figures of a whole request: under 10 s without the command, which other tests may slow down, and
# under 0.2 s in the executor.
python3 - "$out" <<'PY' || fail "a request took too long: $out"
import re, sys
whole, command, executor, rest = map(float, re.search(
    r"came back in ([\d.]+) s: ([\d.]+) s in the command, ([\d.]+) s in the executor, ([\d.]+) s",
    sys.argv[1]).groups())
print("request to results %.2f s, executor %.4f s" % (whole, executor), file=sys.stderr)
sys.exit(not (0 < command < whole < command + 10 and executor < 0.2))
PY
cp "$work/config/kakeya/bridge.json" "$work/before"
cp "$work/config/kakeya/bridge.json.signers" "$work/before.signers"
exits 0 bridge setup --signer "ann=$work/ann.pub" --no-self-test
has "$out" "is as it was" "0 added"
cmp -s "$work/before" "$work/config/kakeya/bridge.json" || fail "setup changed the configuration"
cmp -s "$work/before.signers" "$work/config/kakeya/bridge.json.signers" || fail "setup changed the signers"
exits 0 bridge doctor
has "$out" "ok       git" "ok       remote" "would take a push" "2 reference cases" "as m4"
lacks "$out" missing
[ "$(printf '%s\n' "$out" | wc -l)" -le 24 ] || fail "doctor does not fit on a screen"
exits 0 bridge doctor --json
json "$out" missing checks verdict
exits 1 bridge doctor --remote "$work/nowhere"
has "$out" "missing  remote"
XDG_CONFIG_HOME=$work/none exits 1 bridge doctor
has "$out" "this machine can ask, not answer" "none is named"
exits 1 bridge setup --signer "ann=$work/before" --no-self-test
has "$err" "no public key"
exits 1 bridge setup --signer "no name=$work/ann.pub" --no-self-test
# A name that ends another's is a name of its own.
XDG_CONFIG_HOME=$work/others exits 0 bridge setup --name m4 --remote "$bus" --signer "joann=$work/ann.pub" --no-self-test
XDG_CONFIG_HOME=$work/others exits 0 bridge setup --signer "ann=$work/ann.pub" --no-self-test
has "$out" "1 added"
exits 1 bridge setup -m "$work/nowhere" --config "$work/other.json" --state "$work/other" --no-self-test
has "$err" "is not there"
echo '{"nmae": 1}' >"$work/typo.json"
exits 1 bridge doctor --config "$work/typo.json"
has "$out" "no member \"nmae\""
exits 1 bridge run "$bus" --config "$work/typo.json"
exits 1 bridge run "$bus" --config "$work/nowhere.json"
has "$err" "kakeya bridge setup"

# ---- every preset, at its defaults, least and greatest values, is a command line of this program
exits 0 bridge request --list
presets=$(printf '%s\n' "$out" | sed -n 's/^\([a-z][a-z0-9-]*\) .*/\1/p')
[ "$(echo "$presets" | wc -l)" -eq 22 ] || fail "there are other presets than were counted: $presets"
printf '%s\n' "$out" >"$work/list"
cat >"$work/paths.json" <<JSON
{"name": "m4", "paths": {"model": "$root/models/tiny/verifier", "drafter": "$root/models/tiny/drafter",
 "projection": "$root/models/tiny/projection", "cases": ["$KK_TEST_DATA/parity/dense"],
 "reports": "$root/bench/results"}}
JSON
python3 - "$KAKEYA" "$work" >"$work/tried" 2>&1 <<'PY' || fail "presets: $(tail -n 5 "$work/tried")"
import json, re, subprocess, sys
program, work = sys.argv[1:]
presets, name = {}, None
for line in open(work + "/list"):
    if line[0] != " ":
        name = line.split()[0]
        presets[name] = {}
    else:
        param, values = line.strip().split("=", 1)
        bounds = re.match(r"(\d+)\.\.(\d+) \((\d+)\)$", values)
        presets[name][param] = bounds.groups()[:2] if bounds else values.split(" ")
for name, params in presets.items():
    # A parameter each time at its next value; words and bounds all come up.
    for turn in range(max([len(v) for v in params.values()] + [1]) + 1):
        words = [] if turn == 0 else ["--param=%s=%s" % (p, v[(turn - 1) % len(v)]) for p, v in params.items()]
        ask = subprocess.run([program, "bridge", "request", name, "--no-push", "--requested-by", "ann",
                              "--ref", "test"] + words, capture_output=True, text=True)
        assert ask.returncode == 0, (name, words, ask.stderr)
        open(work + "/one.json", "w").write(ask.stdout)
        run = subprocess.run([program, "bridge", "run", "--manifest", work + "/one.json", "--dry-run",
                              "--config", work + "/paths.json"], capture_output=True, text=True)
        assert run.returncode == 0, (name, run.stderr)
        for argv in json.loads(run.stdout)["commands"]:
            assert argv[0] == program and not [w for w in argv if "{" in w or w[0] in "@?"], argv
            # Everything before --help is parsed and checked; this build may have no MLX.
            argv = ["cpu" if w == "mlx" else w for w in argv] + ["--help"]
            told = subprocess.run(argv, capture_output=True, text=True)
            assert told.returncode == 0, (argv, told.stderr)
print("%d presets" % len(presets))
PY
# The documentation has them all.
for preset in $presets; do
    grep -q "^| \`$preset\` |" "$root/docs/bridge.md" || fail "docs/bridge.md does not have $preset"
done
# A name that this checkout knows is stored as the commit that it is; one from here, only so.
git init -q "$work/here"
git -C "$work/here" -c user.name=a -c user.email=a@b commit -q --allow-empty -m one
head=$(git -C "$work/here" rev-parse HEAD)
for ref in HEAD @ "$head" "${head:0:12}" elsewhere; do
    stored=$(cd "$work/here" && "$KAKEYA" bridge request mlx-env-probe --no-push --requested-by ann --ref "$ref" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["ref"])')
    case $ref in elsewhere) same "$stored" elsewhere "a name of others" ;; *) same "$stored" "$head" "--ref $ref" ;; esac
done
(cd "$work/here" && "$KAKEYA" bridge request mlx-env-probe --no-push --requested-by ann --ref HEAD~4) 2>"$work/err" >&2
same $? 2 "a commit that is not there"
has "$(cat "$work/err")" "no commit here that is called HEAD~4"
exits 2 bridge request pytest-path --no-push --requested-by ann --ref test
has "$err" "runs nothing that a request brings"
exits 2 bridge request parity --no-push --requested-by ann --ref test --param device=tpu
exits 2 bridge request eval-kv --no-push --requested-by ann --ref test --param n_samples=51
has "$err" "n_samples is 51, and takes 1 to 50"
exits 2 bridge request eval-kv --no-push --requested-by ann --ref test --param n_samples
exits 2 bridge request eval-kv --no-push --requested-by ann --ref test --param n_samples=1x
exits 2 bridge request eval-kv --no-push --requested-by ann --ref test --param no=1
exits 2 bridge request zzz --no-push --requested-by ann --ref test
exits 2 bridge request mlx-env-probe --no-push --requested-by "-x" --ref test
exits 2 bridge request mlx-env-probe --no-push --requested-by ann --ref=-x
exits 2 bridge request mlx-env-probe --no-push --requested-by ann --ref test --runner "a b"
exits 2 bridge request mlx-env-probe --no-push --requested-by ann --ref test --branch-suffix=..
exits 2 bridge request
exits 2 bridge run --manifest "$work/one.json"
mkdir -p "$work/mine/results"; echo '{"my": "data"}' >"$work/mine/results/data.json"
exits 2 bridge run --manifest "$work/one.json" -o "$work/mine"
has "$err" "is not empty"
[ -s "$work/mine/results/data.json" ] || fail "a file of the user's is gone"
exits 1 bridge run --manifest "$work/nowhere" --dry-run

# ---- several for real, on the shipped models: asked, carried out, gated, fetched
python3 - "$work/config/kakeya/bridge.json" "$root/bench/results" <<'PY'
import json, sys
config = json.load(open(sys.argv[1]))
config["paths"]["reports"] = sys.argv[2]
json.dump(config, open(sys.argv[1], "w"))
PY
for preset in "eval-needle --param n_samples=1 --param max_new_tokens=8 --param lines=20" \
    "eval-accept --param n_samples=1 --param max_new_tokens=16" "parity" "k3-evidence-gate" "integration-tests" "mlx-env-probe"; do
    # shellcheck disable=SC2086  # words of a command line
    ask $preset
    exits 0 bridge run -q
    fetched 0 "done on m4"
    kept=$(find "$work/got/results" -name '*.json' | wc -l)
    case $preset in
    eval* | integration*)
        same "$kept" 1 "reports of $preset"
        exits 0 report check "$work/got/results"
        ;;
    *) same "$kept" 0 "reports of $preset" ;;
    esac
    json "$(cat "$work/got/summary.json")" overhead_s commands runner evidence_gate_exit_code
done
python3 -c 'import json, sys; json.load(open(sys.argv[1]))["backends"]["mlx"]' "$work/got/logs/mlx-env-probe-0.log" ||
    fail "the probe does not say whether there is MLX"

# ---- a device that is not there is an answer
if [ "$("$KAKEYA" doctor --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["backends"]["mlx"]["usable"])')" = False ]; then
    ask k3-native-baseline
    exits 1 bridge run -q
    fetched 1 failed "mlx"
fi

# ---- the client's exit codes, its remotes and what it refuses to ask about
branch=${prefix}mlx-env-probe-none
fetched 3 "no such branch"
ask mlx-env-probe --branch-suffix -ab12
has "$branch" "-ab12"
fetched 2 "not finished"
exits 0 bridge status --remote "$bus"
has "$out" "pending      $branch" "done " "(m4)"
exits 0 bridge status --remote "$bus" --json
json "$out" requests stage summary
exits 1 bridge status --remote "$work/nowhere"
exits 2 bridge status --remote=--upload-pack=x
git init -q "$work/tree"
(
    cd "$work/tree" || exit 1
    failures=0
    git remote add hub "$bus"
    echo one >file
    git add file
    kakeya bridge request mlx-env-probe --requested-by bob --remote hub
    [ "$code" -eq 2 ] && has "$err" "no commit here" || fail "a request about no commit: $code"
    git commit -q -m one
    echo two >file
    kakeya bridge request mlx-env-probe --requested-by bob --remote hub
    [ "$code" -eq 2 ] && has "$err" "not committed" || fail "a request about files without a commit: $code"
    git checkout -q file
    kakeya bridge request mlx-env-probe --requested-by bob --remote hub --json
    [ "$code" -eq 0 ] && json "$out" branch commit || fail "a request from a repository: $err"
    exit $((failures > 0))
) || fail "requests from a repository"
exits 2 bridge request mlx-env-probe --requested-by ann --key "$work/nowhere" --ref test --remote "$bus"
has "$err" "cannot be signed"
# A request that waits while a runner works.
(for _ in $(seq 40); do sleep 0.3; "$KAKEYA" bridge run -q; done) >/dev/null 2>&1 &
looks=$!
exits 0 bridge request mlx-env-probe --requested-by ann --key "$work/ann" --ref test --remote "$bus" \
    --wait 60 --poll-interval 1 -o "$work/waited" --json
json "$(printf '%s' "$out" | tail -n 1)" exit_code summary
kill $looks; wait
finish
