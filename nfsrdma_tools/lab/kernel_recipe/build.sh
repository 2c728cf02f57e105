#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# On the host, as root: a kernel that checks itself, built in an overlay of an image's root, with the
# image's own compiler. The image stays as it is: unshare -m build.sh DISK FLAVOUR WORK OUT
# The mounts are this process' own and end with it; WORK takes 6 GB.
set -eu
disk=$1 flavour=$2 work=$3 out=$4
recipe=$(dirname "$(readlink -f "$0")")
root=$work/root
mkdir "$work/image" "$work/new" "$work/over" "$root"
mount -o ro,loop "$disk" "$work/image"
mount -t overlay -o "lowerdir=$work/image,upperdir=$work/new,workdir=$work/over" lab "$root"
for kernel in proc dev; do mount --bind "/$kernel" "$root/$kernel"; done
mkdir "$root/recipe" "$root/out"
mount --bind "$recipe" "$root/recipe"
mount --bind "$out" "$root/out"
# the image's own archive, by this machine's name server
cp -L --remove-destination /etc/resolv.conf "$root/etc/resolv.conf"
cd /
exec chroot "$root" nice sh /recipe/make.sh "$flavour"
