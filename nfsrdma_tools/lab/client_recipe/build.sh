#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds libnfsrdma for the nodes on the host, with the image's compiler; needs no root:
# unshare -m [--map-root-user] build.sh DISK PACKAGES SOURCE OUT
# PACKAGES has headers and programs that the image lacks, and the source of rdma-core; SOURCE has lib/ and kmod/.
# PREFIX is that of a cross compiler, or empty; COMPILER is then its folder.
# OUT gets the library, and the providers by which libibverbs uses the devices of a lab.
set -eu
disk=$1 packages=$2 source=$3 out=$4
. "${0%/*}/../kernel_recipe/root.sh"
make_root "$disk" usr/include
cp -r "$packages/usr" "$root"
if test -n "$PREFIX"; then
	cp -r "$COMPILER/usr" "$root"
	export CC="${PREFIX}gcc" PKG_CONFIG_PATH="/usr/lib/${PREFIX%-}/pkgconfig"
fi
mkdir "$root/opt" "$root/opt/out"
cp -r "$packages/rdma-core" "$root/opt"
cp -r "$source" "$root/opt/source"
chroot "$root" make -s -C /opt/source/lib "-j$(nproc)" BUILD=/opt/build /opt/build/libnfsrdma.so.0
cp "$root/opt/build/libnfsrdma.so.0" "$root/opt/out"
for device in rxe siw; do cp "$root"/usr/lib/*/libibverbs/lib$device-rdmav*.so "$root/opt/out"; done
chroot "$root" sh /opt/source/kmod/card/provider/build.sh /opt/rdma-core /opt/out
chroot "$root" sh -c "${PREFIX}strip --strip-debug /opt/out/*"
cp "$root"/opt/out/* "$out"
