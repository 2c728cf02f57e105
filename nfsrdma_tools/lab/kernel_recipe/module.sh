#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds a module for a kernel of the lab on the host, with the image's compiler; needs no root:
# unshare -m [--map-root-user] module.sh DISK MODULES RELEASE SOURCE OUT [WORDS FOR make]...
# MODULES is the disk with the kernel's modules and headers. PREFIX is that of a cross compiler, or empty; COMPILER
# is then its folder, and KBUILD that of the headers' programs for this host.
set -eu
disk=$1 modules=$2 release=$3 source=$4 out=$5
shift 5
. "${0%/*}/root.sh"
# perl is for kernel-doc, which W=1 runs; objtool reads its limits from /proc
make_root "$disk" usr/share/perl
mkdir -p "$root/opt/kernel"
debugfs -R "rdump usr $root/opt/kernel" "$modules" >/dev/null 2>&1
if test -n "$PREFIX"; then
	cp -r "$COMPILER/usr" "$root"
	cp -r "$KBUILD/usr" "$root/opt/kernel"
fi
ln -s /opt/kernel/usr/lib/modules "$root/usr/lib"
ln -s /opt/kernel/usr/src "$root/usr"
cp -r "$source" "$root/opt/kmod"
# the host's checker needs nothing but libc
case " $* " in *" C=2 "*) cp "$(command -v sparse)" "$root/usr/bin" ;; esac
chroot "$root" make -s -C "/lib/modules/$release/build" M=/opt/kmod "-j$(nproc)" "$@" clean modules
ko=$(cd "$root" && find opt/kmod -name '*.ko')
chroot "$root" "${PREFIX}strip" --strip-debug "$ko"
cp "$root/$ko" "$out"
