#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run on the host, as root: unshare -m build.sh DISK WORK OUT PART...
# builds a kernel of these parts (make.sh) in an overlay of an image's root, with the image's compiler, and does
# not change the image. The mounts belong to this process and end with it; WORK needs 6 GB. COMPILER is the folder
# of a cross compiler, or empty.
set -eu
disk=$1 work=$2 out=$3
shift 3
recipe=$(dirname "$(readlink -f "$0")")
root=$work/root
mkdir "$work/image" "$work/new" "$work/over" "$root"
mount -o ro,loop "$disk" "$work/image"
mount -t overlay -o "lowerdir=${COMPILER:+$COMPILER:}$work/image,upperdir=$work/new,workdir=$work/over" lab "$root"
for kernel in proc dev; do mount --bind "/$kernel" "$root/$kernel"; done
mkdir "$root/recipe" "$root/out"
mount --bind "$recipe" "$root/recipe"
mount --bind "$out" "$root/out"
# the image's archive, with the host's name server
cp -L --remove-destination /etc/resolv.conf "$root/etc/resolv.conf"
cd /
exec chroot "$root" nice sh /recipe/make.sh "$@"
