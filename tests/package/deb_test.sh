#!/usr/bin/env bash
# deb_test.sh BUILD SOURCE - the Debian package: CPack makes it, its dependencies are there to be had,
# and what it holds works from where it was unpacked.  Exit 77: not a Debian system.
set -euo pipefail
build=$1 source=$2
for tool in cpack dpkg-deb dpkg-shlibdeps curl; do # `command -v` of several is content with one
    command -v $tool >/dev/null || { echo "SKIP: no $tool (scripts/setup test)" >&2; exit 77; }
done
skipped=0
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
wrong() {
    echo "FAILED: $*" >&2
    exit 1
}

cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/cpack" >"$work/log" 2>&1 ||
    wrong "cpack: $(cat "$work/log")"
deb=$work/cpack/kakeya.deb
dpkg-deb -x "$deb" "$work/root"
dpkg-deb -e "$deb" "$work/control"

# ---- what it says of itself
depends=$(dpkg-deb -f "$deb" Depends)
wanted="libc6 libjansson4 libedit2"
wanted="$wanted libmicrohttpd libsqlite3"
[ ! -e "$build/libkakeya_train.so" ] || wanted="$wanted libopenblas"
[ ! -e "$build/libkakeya_grpc.so" ] || wanted="$wanted libgrpc++"
for package in $wanted; do
    case $depends in *"$package"*) ;; *) wrong "Depends without $package: $depends" ;; esac
done
for script in postinst prerm postrm; do
    [ -x "$work/control/$script" ] || wrong "$script is not there, or cannot be run"
    sh -n "$work/control/$script"
done
[ "$(cat "$work/control/conffiles")" = /etc/kakeya/serve.conf ] || wrong "conffiles"
(cd "$work/root" && md5sum --quiet -c "$work/control/md5sums") || wrong "md5sums"
if grep -rIl -e "$work" -e "$build" "$work/root"; then wrong "it names folders of the build"; fi
# apt takes it, with what is installed or can be fetched.
if command -v apt-get >/dev/null && apt-cache show libjansson4 >/dev/null 2>&1; then
    apt-get install --simulate --no-install-recommends "$deb" >"$work/log" 2>&1 ||
        wrong "apt-get: $(cat "$work/log")"
    grep -q '^Inst kakeya ' "$work/log" || wrong "apt-get would not install it: $(cat "$work/log")"
else
    echo "SKIP: apt-get knows of no packages: it was not asked to install this one" >&2
    skipped=77
fi

# ---- the unit
unit=$work/root/usr/lib/systemd/system/kakeya.service
grep -qx 'ExecStart=/usr/bin/kakeya serve .*' "$unit" || wrong "ExecStart of the unit"
if command -v systemd-analyze >/dev/null; then
    # The program is looked for where the unit says, and the manual page on this machine.
    sed "s|/usr/bin/kakeya|$work/root/usr/bin/kakeya|; /^Documentation=/d" "$unit" \
        >"$work/kakeya.service"
    said=$(systemd-analyze verify "$work/kakeya.service" 2>&1) || wrong "systemd-analyze: $said"
    [ -z "$said" ] || wrong "systemd-analyze verify: $said"
    # Offline it reads the file alone; 252 is the first that can.
    if systemd-analyze --help | grep -q offline; then
        exposure=$(systemd-analyze security --offline=yes --threshold=20 "$work/kakeya.service") ||
            wrong "systemd-analyze security: $(echo "$exposure" | tail -n 1)"
    fi
else
    echo "SKIP: no systemd-analyze: the unit was not verified (scripts/setup test)" >&2
    skipped=77
fi

# ---- it runs: the unit's own command, with the folder of the state moved
"$work/root/usr/bin/kakeya" version
"$work/root/usr/bin/kakeya" serve --config "$work/root/etc/kakeya/serve.conf" \
    --state "$work/state" --log json --port 0 2>"$work/said" &
server=$!
for _ in $(seq 1200); do
    if grep -q '"ready: ' "$work/said"; then break; fi
    kill -0 "$server" 2>/dev/null || wrong "the server ended: $(cat "$work/said")"
    sleep 0.1
done
port=$(sed -n 's/.*listening on http:[^ ]*:\([0-9]*\)".*/\1/p' "$work/said")
answer=$(curl -sS "localhost:$port/v1/completions" -d '{"prompt": "import os", "max_tokens": 4}')
case $answer in *'"text"'*) ;; *) wrong "answer: $answer" ;; esac
kill "$server"
wait "$server" || wrong "the server does not end well: $(cat "$work/said")"
server=
grep -q '"path": *"/v1/completions"' "$work/said" || wrong "the config file was not read"
exit $skipped
