#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds a module for a kernel of the lab on the host, with the image's compiler; needs no root:
# unshare -m [--map-root-user] module.sh DISK MODULES RELEASE SOURCE OUT [WORDS FOR make]...
# MODULES is the disk with the kernel's modules and headers. debugfs reads both disks, because a user may
# not mount them. The copies are in a tmpfs of this process, and end with it.
set -eu
disk=$1 modules=$2 release=$3 source=$4 out=$5
shift 5
root=$(mktemp -d)
trap 'umount -l "$root"; rmdir "$root"' EXIT
mount -t tmpfs tmpfs "$root"
mkdir -p "$root/usr/share" "$root/etc" "$root/dev" "$root/proc" "$root/tmp" "$root/opt/kernel"
# debugfs complains of owners that it cannot set, and succeeds without a file: make says what is missing
# perl is for kernel-doc, which W=1 runs
for folder in usr/bin usr/lib usr/lib64 usr/libexec usr/share/perl etc/alternatives; do
	echo "rdump $folder $root/${folder%/*}"
done | debugfs -f - "$disk" >/dev/null 2>&1
debugfs -R "rdump usr $root/opt/kernel" "$modules" >/dev/null 2>&1
ln -s usr/bin usr/lib usr/lib64 "$root"
ln -s /opt/kernel/usr/lib/modules "$root/usr/lib"
ln -s /opt/kernel/usr/src "$root/usr"
# objtool reads its limits from /proc
for kernel in dev proc; do mount --rbind "/$kernel" "$root/$kernel"; done
cp -r "$source" "$root/opt/kmod"
# the host's checker needs nothing but libc
case " $* " in *" C=2 "*) cp "$(command -v sparse)" "$root/usr/bin" ;; esac
chroot "$root" make -s -C "/lib/modules/$release/build" M=/opt/kmod "-j$(nproc)" "$@" clean modules
chroot "$root" sh -c 'strip --strip-debug /opt/kmod/*.ko'
cp "$root/opt/kmod/"*.ko "$out"
