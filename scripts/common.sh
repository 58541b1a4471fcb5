# common.sh - sourced by the other scripts: where things are and how a build is made.

cd "$(dirname "$0")/.."
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# configure DIR ARG...: quiet unless it fails.
configure() {
    dir=$1
    shift
    mkdir -p "$dir"
    if ! cmake -S . -B "$dir" -G Ninja "$@" >"$dir/configure.log" 2>&1; then
        cat "$dir/configure.log" >&2
        return 1
    fi
}

# progress NAME: reads what ninja says and shows how far it is: one line that is rewritten on a
# terminal, and elsewhere a line per tenth, or per half minute where a tenth takes longer.
progress() {
    local name=$1 line left done total said=-1 shown tenth start=$SECONDS at=0
    while true; do
        if IFS= read -r -t 30 line; then
            case $line in '['*/*']'*) ;; *) continue ;; esac
            left=${line#[} && left=${left%%]*}
            done=${left%/*} total=${left#*/}
        elif [ $? -le 128 ]; then
            break # the end of the output, not the half minute
        elif [ -z "${total:-}" ]; then
            continue
        fi
        shown="$name: $done of $total built ($((100 * done / total)) %), $((SECONDS - start)) s"
        if [ -t 1 ]; then
            printf '\r%s ' "$shown"
            continue
        fi
        tenth=$((10 * done / total))
        [ $tenth -gt $said ] || [ $((SECONDS - at)) -ge 30 ] || continue
        said=$tenth at=$SECONDS
        echo "$shown"
    done
    if [ -t 1 ] && [ -n "${total:-}" ]; then echo; fi
}

# build DIR [TARGET...]: one line per file is noise; warnings and errors are shown.
build() {
    dir=$1
    shift
    if ! NINJA_STATUS='[%f/%t] ' ninja -C "$dir" -j "$jobs" "$@" 2>&1 | tee "$dir/build.log" |
        progress "$dir"; then
        grep -v '^\[[0-9]*/[0-9]*\] \(Building\|Linking\)' "$dir/build.log" >&2
        return 1
    fi
}

# C and C++ files of the project, or of the folders named.
c_files() {
    for folder in "${@:-.}"; do
        [ -d "$folder" ] || continue
        find "$folder" \( -name '*.[ch]' -o -name '*.cc' \) \
            ! -path './build*' ! -path './.*' ! -path '*/tests/data/*' ! -path 'tests/data/*'
    done | sed 's|^\./||' | sort
}
