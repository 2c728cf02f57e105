#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the module on the host with a lab image's own compiler and headers, which takes seconds
# where a node that is emulated takes minutes: unshare -m build_module.sh DISK RELEASE SOURCE OUT
# More words go to make; MODULES is a disk with a kernel's modules and headers, which the image has not.
# Needs root. The mounts are this process' own and end with it.
set -eu
disk=$1 release=$2 source=$3 out=$4
shift 4
work=$(mktemp -d)
trap 'umount -l "$work"; rmdir "$work"' EXIT
mount -t tmpfs tmpfs "$work"
mkdir "$work/image" "$work/new" "$work/work" "$work/root"
mount -o ro,loop "$disk" "$work/image"
mount -t overlay -o "lowerdir=$work/image,upperdir=$work/new,workdir=$work/work" lab "$work/root"
for kernel in proc dev; do mount --bind "/$kernel" "$work/root/$kernel"; done
if test -n "${MODULES:-}"; then
	mkdir -p "$work/root/usr/lib/modules/$release"
	mount -o ro,loop "$MODULES" "$work/root/usr/lib/modules/$release"
fi
cp -r "$source" "$work/root/opt/kmod"
chroot "$work/root" make -s -C "/lib/modules/$release/build" M=/opt/kmod "-j$(nproc)" "$@" clean modules
cp "$work/root/opt/kmod/"*.ko "$out"
