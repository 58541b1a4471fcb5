#!/usr/bin/env bash
# What commands write: never over what they should not, checked before the work, whole or not at all,
# and one run at a time.
. "$(dirname "$0")/lib.sh"
shipped=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny
tiny="--synthetic tiny:f32"
kept=$XDG_STATE_HOME/kakeya/sessions
mkdir "$work/o"
inode() { stat -c %d:%i "$1"; }
mode() { stat -c %a "$1"; }
# in_time ARG... - as kakeya does, but not for ever: what comes back at once did no work.
in_time() {
    timeout 20 "$KAKEYA" "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
    err=$(cat "$work/err")
}
# nothing_beside FILE... - no temporary file is left of these.
nothing_beside() {
    local file
    for file in "$@"; do
        [ ! -e "$file.kakeya-tmp" ] || fail "$file.kakeya-tmp is left"
    done
}
# wait_for FILE
wait_for() {
    for _ in $(seq 200); do
        [ -e "$1" ] && return
        sleep 0.05
    done
    fail "$1 does not come"
}

# Every command that writes, as "NAME COMMAND OUT": what holds for one holds for all.
printf 'One text.\n' >"$work/text.txt"
mkdir "$work/reports"
bench="bench $tiny --read-time 0.05 -n 2 --rows none --prefill 0 --repeat 1 -q -t 1"
eval_needle="eval needle -m $model --ladder 10 --samples 1 -t 1 -n 2 -q"
exits 0 $bench --report "$work/reports/bench.json"
writes() { # COMMAND: runs it to $out_file with the arguments that follow
    local what=$1
    shift
    case $what in
    quantize) kakeya quantize "$model" "$out_file" --type q4_0 -q "$@" ;;
    session) kakeya session save "$out_file" $tiny --tokens 2,3 -q "$@" ;;
    bench) kakeya $bench --report "$out_file" "$@" ;;
    eval) kakeya $eval_needle --report "$out_file" "$@" ;;
    page) kakeya report html "$work/reports" -o "$out_file" "$@" ;;
    esac
}
for what in quantize session bench eval page; do
    out_file=$work/o/$what
    writes $what
    same $code 0 "$what: $err"
    [ -s "$out_file" ] || fail "$what writes nothing"
    case $what in session) same "$(mode "$out_file")" 600 "mode of a new $what" ;; esac

    # What is there stays without --force, and with it keeps its mode.
    echo mine >"$out_file"
    chmod 640 "$out_file"
    writes $what
    same $code 1 "$what over a file"
    case $err in *exists* | *already*) ;; *) fail "$what over a file: $err" ;; esac
    has "$err" "--force"
    same "$(cat "$out_file")" mine "$what without --force"
    writes $what --force
    same $code 0 "$what --force: $err"
    same "$(mode "$out_file")" 640 "mode after $what --force"
    [ "$(stat -c %s "$out_file")" -gt 100 ] || fail "$what --force wrote nothing"
    [ "$(id -u)" -ne 0 ] || {
        chown 65534:65533 "$out_file"
        writes $what --force
        same "$(stat -c %u:%g "$out_file")" 65534:65533 "owner after $what --force"
    }

    # A link stays one, and what it leads to is written.
    ln -s "$what-target" "$work/o/$what-link"
    out_file=$work/o/$what-link
    writes $what
    same $code 0 "$what to a link: $err"
    [ -L "$out_file" ] && [ -s "$work/o/$what-target" ] || fail "$what replaced a link"

    # Devices and FIFOs are written through.
    before=$(inode /dev/null)
    for out_file in /dev/null "$work/o/null"; do
        [ -e "$out_file" ] || ln -s /dev/null "$out_file"
        writes $what
        same $code 0 "$what to $out_file: $err"
    done
    [ -c /dev/null ] && same "$(inode /dev/null)" "$before" "/dev/null after $what"
    out_file=$work/o/$what-fifo
    mkfifo "$out_file"
    wc -c <"$out_file" >"$work/count" &
    writes $what
    same $code 0 "$what to a FIFO: $err"
    wait $!
    [ "$(cat "$work/count")" -gt 100 ] || fail "$what wrote $(cat "$work/count") bytes to a FIFO"
    [ -p "$out_file" ] || fail "$what replaced a FIFO"
    nothing_beside "$work/o/$what" "$work/o/$what-link" "$work/o/$what-target" "$out_file" /dev/null
    if [ -c /dev/full ]; then
        out_file=/dev/full
        writes $what
        same $code 1 "$what to a full device"
        has "$err" "No space left"
    fi

    # A folder that is not there, one in place of the file, and one without permission.
    for out_file in "$work/none/x" "$work/o"; do
        writes $what
        same $code 1 "$what to $out_file"
        has "$err" "$out_file"
    done
    if [ "$(id -u)" -ne 0 ]; then
        mkdir -p "$work/closed"
        chmod 500 "$work/closed"
        out_file=$work/closed/x
        writes $what
        same $code 1 "$what to a closed folder"
        has "$err" "Permission denied"
    fi

    # What a killed run left is gone after the next one, and what is nobody's is left alone.
    out_file=$work/o/$what-after
    echo half >"$out_file.kakeya-tmp"
    echo other >"$out_file.tmp"
    writes $what
    same $code 0 "$what after a killed one: $err"
    nothing_beside "$out_file"
    same "$(cat "$out_file.tmp")" other

    # What a living run has is not: flock(1) stands for it.
    out_file=$work/o/$what-busy
    echo half >"$out_file.kakeya-tmp"
    flock "$out_file.kakeya-tmp" -c "touch '$work/held'; sleep 30" &
    holder=$!
    wait_for "$work/held"
    writes $what
    same $code 1 "$what beside another run"
    has "$err" "is being written by another run"
    same "$(cat "$out_file.kakeya-tmp")" half "$what took the file of a living run"
    [ ! -e "$out_file" ] || fail "$what wrote what another run writes"
    kill $(ps -o pid= --ppid $holder) $holder 2>/dev/null
    wait $holder 2>/dev/null
    rm -f "$work/held"
done

# ---- no standard streams ---------------------------------------------------------------------------
# What is said goes nowhere then, and not into the file that took the number of the stream.
exits 0 quantize "$model" "$work/o/whole" --type q4_0
for closed in '2>&-' '>&- 2>&-' '<&- 2>&-' '<&- >&- 2>&-'; do
    rm -f "$work/o/closed"
    eval "\"\$KAKEYA\" quantize '$model' '$work/o/closed' --type q4_0 $closed"
    same $? 0 "quantize $closed"
    cmp "$work/o/closed" "$work/o/whole" || fail "quantize $closed wrote something else"
done
"$KAKEYA" run $tiny --tokens 2,3 -n 2 >&- 2>"$work/err"
same $? 1 "run without a standard output"
has "$(cat "$work/err")" "cannot write to standard output"
"$KAKEYA" run -m "$model" -f - -n 2 <&- >"$work/out" 2>"$work/err"
same $? 1 "run without a standard input"
has "$(cat "$work/err")" "cannot read the prompt from '-'"

# ---- standard output -----------------------------------------------------------------------------
exits 0 $bench --report -
json "$out" kind machine arms
has "$err" "decode"
exits 0 $eval_needle --report -
json "$out" kind rungs
exits 0 report html "$work/reports" -o -
has "$out" "<!doctype html>" "</html>"
"$KAKEYA" report html "$work/reports" -o /dev/stdout >"$work/page" 2>/dev/null
same "$(cat "$work/page")" "$out" "the page by way of /dev/stdout"
# In the middle of a file that the shell opened, which stays the file it is.
{
    echo before
    "$KAKEYA" report html "$work/reports" -o /dev/stdout
    echo after
} >"$work/page"
same "$(head -1 "$work/page") $(tail -1 "$work/page")" "before after" "a page between two lines"
[ ! -e - ] || fail "a file is called -"
exits 2 quantize "$model" - --type q8_0
has "$err" "/dev/stdout"
"$KAKEYA" quantize "$model" /dev/stdout --type q4_0 2>/dev/null | cmp - "$work/o/quantize-after" ||
    fail "quantize to a pipe"

# ---- inputs --------------------------------------------------------------------------------------
cp -r "$model" "$work/in"
sum=$(cat "$work/in"/* | cksum)
ln "$work/in/model.safetensors" "$work/hard"
ln -s in/model.safetensors "$work/soft"
ln -s in "$work/again"
for file in "$work/in/model.safetensors" "$work/in/config.json" "$work/hard" "$work/soft" \
    "$work/again/tokenizer.json"; do
    exits 1 quantize "$work/in" "$file" --type q4_0 --force
    has "$err" "is read here"
    exits 1 eval needle -m "$work/in" --ladder 10 --samples 1 -n 2 -q -t 1 --report "$file" --force
    has "$err" "is read here"
    exits 1 session save "$file" -m "$work/in" -p x --force
    has "$err" "is read here"
done
exits 1 session save "$work/./text.txt" $tiny -f "$work/text.txt" --force
has "$err" "is read here"
exits 1 report html "$work/reports" -o "$work/reports/bench.json" --force
has "$err" "is read here"
same "$(cat "$work/in"/* | cksum)" "$sum" "the model"
same "$(cat "$work/text.txt")" "One text." "the prompt"
exits 0 report check "$work/reports/bench.json" -q
# A file beside the inputs is none of them.
exits 0 quantize "$work/in" "$work/in/q4_0.gguf" --type q4_0 -q
exits 0 quantize "$work/in" "$work/in/q4_0.gguf" --type q4_0 -q --force

# ---- before the work -----------------------------------------------------------------------------
# Nobody writes to this FIFO: who reads the prompt first never comes back.
mkfifo "$work/never"
for name in "$work/none/x.kks" "$work/o" "$work/o/session"; do
    in_time session save "$name" -m "$model" -f "$work/never"
    same $code 1 "session save $name"
done
# A model that cannot be read is found later than a file that cannot be written.
mkdir "$work/bad"
cp "$model"/* "$work/bad"
printf '\377\377\377\377\377\377\377\377' >"$work/bad/model.safetensors"
for command in "bench -n 2 -q" "eval needle --ladder 10 --samples 1 -q" "eval accept -q --spec ngram" \
    "eval kv -q" "eval memory -q" "eval sweep -q -mp $shipped/projection"; do
    exits 1 $command -m "$work/bad" --report "$work/none/report.json"
    has "$err" "none/report.json"
    exits 1 $command -m "$work/bad" --report "$work/o/bench"
    has "$err" "o/bench' exists" "--force"
    exits 1 $command -m "$work/bad" --report "$work/o/new.json"
    lacks "$err" "new.json"
    [ ! -e "$work/o/new.json" ] || fail "'$command' failed and left a report"
    nothing_beside "$work/o/new.json"
done

# ---- two at once ---------------------------------------------------------------------------------
hold() { # ARG...: a run that has its file and waits for its prompt; ends when fd 9 is closed
    rm -f "$work/prompt"
    mkfifo "$work/prompt"
    "$KAKEYA" "$@" -f "$work/prompt" -q >/dev/null 2>"$work/held_err" &
    held=$!
    exec 9>"$work/prompt"
}
exits 0 session save first -m "$model" -p 'Hello' -q
same "$(mode "$kept/first.kks")" 600 "mode of a saved session"
tokens() { "$KAKEYA" session ls --json | tr '{' '\n' | sed -n "s/.*\"name\": \"$1\", \"tokens\": \([0-9]*\).*/\1/p"; }
base=$(tokens first)
hold session save second -m "$model"
wait_for "$kept/second.kks.kakeya-tmp"
in_time session save second -m "$model" -f "$work/never" --force
same $code 1 "two saves of one name"
has "$err" "second.kks' is being written by another run"
echo 'some text' >&9
exec 9>&-
wait $held
same $? 0 "the first of two saves: $(cat "$work/held_err")"
[ "$(tokens second)" -gt 0 ] || fail "the first of two saves is lost"
hold session load first -m "$model" -n 1
wait_for "$kept/first.kks.kakeya-tmp"
in_time session load first -m "$model" -f "$work/never"
same $code 1 "two continuations"
has "$err" "first.kks' is being written by another run"
in_time session save first -m "$model" -f "$work/never" --force
same $code 1 "a save over a continuation"
in_time session rm first
same $code 1 "rm beside a continuation"
has "$err" "being written"
in_time session load first -m "$model" -n 1 --ignore-eos --keep
same $code 0 "--keep beside a continuation: $err"
same "$(tokens first)" "$base" "tokens of the session so far"
echo 'and more' >&9
exec 9>&-
wait $held
same $? 0 "the first of two continuations: $(cat "$work/held_err")"
[ "$(tokens first)" -gt "$base" ] || fail "a continuation is lost"
# In no order: what was said to be saved is there.
exits 0 session save many $tiny --tokens 2,3
for i in 1 2 3 4 5 6 7 8; do
    "$KAKEYA" session load many $tiny -n 4 --ignore-eos -q >/dev/null 2>"$work/one" &
    one=$!
    "$KAKEYA" session load many $tiny -n 4 --ignore-eos -q >/dev/null 2>"$work/two" &
    two=$!
    wait $one
    a=$?
    wait $two
    b=$?
    same "$(cat "$work/one" "$work/two" | grep -vc 'another run\|Wait until')" 0 "$(cat "$work/one" "$work/two")"
    done_now=$(((a == 0) + (b == 0)))
    [ $done_now -gt 0 ] || fail "neither of two continuations was saved"
    sum=$((${sum_of:-2} + 4 * done_now))
    sum_of=$sum
    same "$(tokens many)" "$sum" "tokens after two continuations at once"
done
exits 0 session rm many
exits 0 session rm first
same "$(ls -A "$kept")" second.kks

# ---- training ------------------------------------------------------------------------------------
if [ -n "${KK_TRAIN_MODULE:-}" ]; then
    train=(train projection -m "$shipped/verifier" -md none --taps 4 --layers full --rank 8
        --needles 1 --needle-lines 20 -t 1 -q --data "$work/texts" --out "$work/p")
    mkdir "$work/texts"
    for i in $(seq 30); do
        printf 'def number_%d():\n    """The number %d, and %d more words."""\n    return %d\n' \
            "$i" "$i" "$i" "$i" >"$work/texts/file$i.py"
    done
    state() { cat "$work/p"/* | cksum; }
    exits 0 "${train[@]}" --report "$work/p/report.json"
    same "$(ls -A "$work/p")" "$(printf 'projection.json\nprojection.safetensors\nreport.json')"
    was=$(state)
    # Not again without --force, and not without a new report beside it.
    exits 1 "${train[@]}"
    has "$err" "projection.safetensors' exists" "--force"
    exits 1 "${train[@]}" --report "$work/p/other.json"
    exits 1 "${train[@]}" --force
    has "$err" "report.json' is the report of the projection that would be replaced"
    exits 1 "${train[@]}" --force --report "$work/p/other.json"
    has "$err" "report.json' is the report"
    exits 1 "${train[@]}" --out "$work/new" --report "$work/p/report.json"
    has "$err" "report.json' exists"
    exits 1 "${train[@]}" --out "$work/new" --report "$work/none/report.json"
    has "$err" "none/report.json"
    exits 1 "${train[@]}" --out "$work/new" --report "$work/texts/file1.py" --data "$work/texts/file1.py" --force
    has "$err" "is read here"
    exits 1 "${train[@]}" --force --init-from "$work/p" --report "$work/p/report.json"
    has "$err" "is read here"
    exits 1 "${train[@]}" -m "$work/bad" --out "$work/none/p"
    has "$err" "none/p"
    same "$(state)" "$was" "the projection after all that"
    [ ! -e "$work/new" ] || fail "a training that came to nothing left its folder"
    exits 0 "${train[@]}" --seed 2 --force --report "$work/p/report.json"
    [ "$(state)" != "$was" ] || fail "--force replaced nothing"
    has "$(cat "$work/p/report.json")" '"seed": 2'
    same "$(ls -A "$work/p" | wc -l)" 3 "files of a projection"
    exits 0 "${train[@]}" --out "$work/piped" --report -
    json "$out" kind projection stages
    has "$err" "rank 8 of"
    # The state of a run that was stopped is not lost to the next one.
    steps=("${train[@]}" --out "$work/s" --loss mse --steps 100000 --checkpoint-every 5)
    "$KAKEYA" "${steps[@]}" >/dev/null 2>&1 &
    pid=$!
    wait_for "$work/s/training.state"
    in_time "${train[@]}" --out "$work/s"
    same $code 1 "two trainings into one folder"
    has "$err" "is being written by another run"
    kill -TERM $pid
    wait $pid
    same $? 143 "a training after SIGTERM"
    same "$(ls -A "$work/s")" training.state
    was=$(cksum <"$work/s/training.state")
    exits 1 "${steps[@]}"
    has "$err" "training.state' exists" "--resume"
    same "$(cksum <"$work/s/training.state")" "$was" "the state"
    echo half >"$work/s/training.state.kakeya-tmp"
    exits 0 "${train[@]}" --out "$work/s" --force
    same "$(ls -A "$work/s")" "$(printf 'projection.json\nprojection.safetensors\ntraining.state')"
else
    skip_part "the module of kakeya train is not built (scripts/setup train)"
fi
finish
