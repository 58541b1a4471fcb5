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

# build DIR [TARGET...]: one line per target is noise; warnings and errors are shown.
build() {
    dir=$1
    shift
    if ! ninja -C "$dir" -j "$jobs" "$@" >"$dir/build.log" 2>&1; then
        grep -v '^\[[0-9]*/[0-9]*\] \(Building\|Linking\)' "$dir/build.log" >&2
        return 1
    fi
}

# C files of the project, or of the folders named.
c_files() {
    for folder in "${@:-.}"; do
        [ -d "$folder" ] || continue
        find "$folder" -name '*.[ch]' \
            ! -path './build*' ! -path './.*' ! -path '*/tests/data/*' ! -path 'tests/data/*'
    done | sed 's|^\./||' | sort
}
