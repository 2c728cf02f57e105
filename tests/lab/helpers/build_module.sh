#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the module on the host with a lab image's own compiler and headers, which takes seconds
# where a node that is emulated takes minutes: unshare -m build_module.sh DISK MODULES RELEASE SOURCE OUT
# MODULES is the disk with the kernel's modules and headers; more words go to make.
# Needs root. The mounts are this process' own and end with it.
set -eu
disk=$1 modules=$2 release=$3 source=$4 out=$5
shift 5
work=$(mktemp -d)
trap 'umount -l "$work"; rmdir "$work"' EXIT
mount -t tmpfs tmpfs "$work"
mkdir "$work/image" "$work/new" "$work/work" "$work/root"
mount -o ro,loop "$disk" "$work/image"
mount -t overlay -o "lowerdir=$work/image,upperdir=$work/new,workdir=$work/work" lab "$work/root"
for kernel in proc dev; do mount --bind "/$kernel" "$work/root/$kernel"; done
kernel=$work/root/opt/kernel
mkdir -p "$kernel" "$work/root/usr/lib/modules/$release"
mount -o ro,loop "$modules" "$kernel"
mount --bind "$kernel/usr/lib/modules/$release" "$work/root/usr/lib/modules/$release"
for headers in "$kernel"/usr/src/* "$kernel"/usr/lib/linux-kbuild-*; do
	test ! -e "$headers" || ln -sfn "${headers#"$work/root"}" "$work/root${headers#"$kernel"}"
done
cp -r "$source" "$work/root/opt/kmod"
# the host's checker needs nothing but libc
case " $* " in *" C=2 "*) cp "$(command -v sparse)" "$work/root/usr/bin" ;; esac
chroot "$work/root" make -s -C "/lib/modules/$release/build" M=/opt/kmod "-j$(nproc)" "$@" clean modules
cp "$work/root/opt/kmod/"*.ko "$out"
