#!/bin/sh
# install.sh BUILT PREFIX: installs what `cargo build --release -p lowtide-c` has left in BUILT (target/release).
set -eu
built=$1 prefix=$2 version=0.1.0
here=$(cd "$(dirname "$0")" && pwd)
install -D -m 644 "$here/include/lowtide.h" "$prefix/include/lowtide.h"
install -D -m 644 "$built/liblowtide.a" "$prefix/lib/liblowtide.a"
install -D -m 755 "$built/liblowtide.so" "$prefix/lib/liblowtide.so.$version"
ln -sf "liblowtide.so.$version" "$prefix/lib/liblowtide.so.0"
ln -sf liblowtide.so.0 "$prefix/lib/liblowtide.so"
install -D -m 644 "$here/man/lowtide.3" "$prefix/share/man/man3/lowtide.3"
mkdir -p "$prefix/lib/pkgconfig"
sed "s|@prefix@|$prefix|; s|@version@|$version|" "$here/lowtide.pc.in" >"$prefix/lib/pkgconfig/lowtide.pc"
