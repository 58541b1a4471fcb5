#!/usr/bin/env bash
# package_test.sh BUILD SOURCE - install, then build and run a small program against what was
# installed: with pkg-config and with find_package, shared and static.
set -euo pipefail
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here=$source/tests/package
cc=${CC:-cc}

# Staged under DESTDIR, as a packager does; the files must name the final prefix only.
DESTDIR=$work/stage cmake --install "$build" --prefix /opt/kakeya >/dev/null
if grep -rIl --include='*.pc' --include='*.cmake' -e "$work" -e "$build" "$work/stage"; then
    echo "installed files name the build or staging folder"
    exit 1
fi
grep -qx 'prefix=/opt/kakeya' "$work"/stage/opt/kakeya/lib*/pkgconfig/kakeya.pc \
    "$work"/stage/opt/kakeya/lib/*/pkgconfig/kakeya.pc 2>/dev/null

prefix=$work/prefix
cmake --install "$build" --prefix "$prefix" >/dev/null
libdir=$(dirname "$(find "$prefix" -name libkakeya.a)")
for file in "$libdir"/libkakeya.so "$libdir"/libkakeya.so.0 "$prefix"/include/kakeya.h \
    "$prefix"/bin/kakeya "$prefix"/share/man/man1/kakeya.1 \
    "$prefix"/share/bash-completion/completions/kakeya \
    "$prefix"/share/zsh/site-functions/_kakeya \
    "$prefix"/share/fish/vendor_completions.d/kakeya.fish; do
    [ -e "$file" ] || { echo "not installed: ${file#"$prefix"/}"; exit 1; }
done
# The manual page and the completions are those of this program.
"$prefix/bin/kakeya" help --man | cmp - "$prefix/share/man/man1/kakeya.1"
"$prefix/bin/kakeya" completion bash | cmp - "$prefix/share/bash-completion/completions/kakeya"
for module in cuda mlx train; do
    if [ -e "$build/libkakeya_$module.so" ] && [ ! -e "$libdir/kakeya/libkakeya_$module.so" ]; then
        echo "not installed: libkakeya_$module.so"
        exit 1
    fi
done
# What people run and link has nothing to do with OpenBLAS.
for file in "$prefix/bin/kakeya" "$libdir/libkakeya.so"; do
    if ldd "$file" | grep -i 'blas\|gfortran'; then
        echo "$file: linked with BLAS"
        exit 1
    fi
done
if nm -A "$libdir/libkakeya.a" "$prefix/bin/kakeya" 2>/dev/null | grep -i 'blas_'; then
    echo "BLAS is called outside its module"
    exit 1
fi
"$prefix/bin/kakeya" version
# The shipped model is found from there.
"$prefix/bin/kakeya" run -q -p 'import os' -n 4 >/dev/null
# So is the module of training: it gets as far as looking for texts.
if [ -e "$build/libkakeya_train.so" ]; then
    said=$("$prefix/bin/kakeya" train projection -md none --taps 4 --out "$work/projection" \
        --data "$work/nothing" 2>&1) && exit 1
    case $said in *"$work/nothing"*) ;; *) echo "$said"; exit 1 ;; esac
fi

export PKG_CONFIG_PATH=$libdir/pkgconfig
strict="-std=c11 -Wall -Wextra -Wpedantic -Werror"
# shellcheck disable=SC2046,SC2086  # lists of flags
{
    $cc $strict "$here/consumer.c" -o "$work/shared" $(pkg-config --cflags --libs kakeya)
    $cc $strict "$here/consumer.c" -o "$work/static" $(pkg-config --cflags kakeya) \
        "$libdir/libkakeya.a" $(pkg-config --static --libs kakeya | sed 's/-lkakeya//')
}
LD_LIBRARY_PATH=$libdir "$work/shared"
"$work/static"

# The header must also serve C++ programs.
skipped=0
if command -v c++ >/dev/null; then
    echo '#include <kakeya.h>' | c++ -fsyntax-only -Wall -Wextra -Werror -I"$prefix/include" -x c++ -
else
    echo "SKIP: no c++: the header was not given to one (scripts/setup grpc)" >&2
    skipped=77
fi

cmake -S "$here" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 &&
    cmake --build "$work/cmake" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/cmake/shared_consumer"
"$work/cmake/static_consumer"

# Taken away again, and nothing else.
touch "$prefix/bin/other" "$prefix/share/man/man1/other.1"
"$source/scripts/uninstall" "$build" "$prefix" | grep -q 'files removed'
left=$(cd "$prefix" && find . ! -type d | sort | tr '\n' ' ')
[ "$left" = "./bin/other ./share/man/man1/other.1 " ] || { echo "left after uninstall: $left"; exit 1; }
if find "$prefix" -type d -path "$prefix/*kakeya*" | grep .; then
    echo "folders left after uninstall"
    exit 1
fi
"$source/scripts/uninstall" "$build" /opt/kakeya "$work/stage" >/dev/null
[ -z "$(find "$work/stage" ! -type d)" ] || { echo "left under DESTDIR"; exit 1; }
exit $skipped
