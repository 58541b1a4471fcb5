#!/usr/bin/env bash
# serve_ops.sh - what whoever operates a server relies on: config file, log, reload, what a service
# manager is told, metrics and their dashboard.
. "$(dirname "$0")/lib.sh"
need_serve
need_tool python3
here=$(cd "$(dirname "$0")" && pwd)

# ---- config files that are wrong name the file and the line
# wrong LINES PART... - `serve --config` with these lines is refused with these words.
wrong() {
    local lines=$1
    shift
    printf '%b' "$lines" >"$work/serve.conf"
    exits 2 serve --config "$work/serve.conf"
    has "$err" "$@"
}
wrong '# a comment\n\nport = 70000\n' "serve.conf:3: --port takes a whole number from 0 to 65535"
wrong 'prot = 1\n' "serve.conf:1: there is no option 'prot'; did you mean 'port'?"
wrong 'port = 1\nport = 2\n' "serve.conf:2: port stands here a second time"
wrong 'port\n' "serve.conf:1: 'port' has no value"
wrong 'verbose = perhaps\n' "serve.conf:1: verbose takes yes or no, not 'perhaps'"
wrong '[server]\n' "serve.conf:1: there are no sections"
wrong 'config = other.conf\n' "serve.conf:1: a config file names no other"
wrong 'alias = "x\n' "serve.conf:1: a value that begins with"
wrong 'kv-full = some\n' "serve.conf:1: --kv-full takes"
wrong 'http = nowhere\n' "--http takes HOST:PORT"
exits 1 serve --config "$work/none.conf"
has "$err" "cannot read the config file" "none.conf"
exits 2 serve --log-content
has "$err" "--log-content goes with --log json and -v"
exits 0 help serve
has "$out" "--config FILE" "SIGHUP" "X-Request-Id" "--log FORMAT"

python3 -B "$here/serve_ops.py" "$KAKEYA" "$work" "$here/../../deploy/grafana.json" || fail "serve_ops.py"
finish
