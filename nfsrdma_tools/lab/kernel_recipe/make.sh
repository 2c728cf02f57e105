#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run in an image's root: make.sh PART... builds Debian's linux-source with the architecture's defaults and each
# PART.config, and writes to /out
#   vmlinuz version config
#   modules.img   a disk with usr/lib/modules/VERSION, the headers to build modules with too
#   kbuild        the headers' programs for this host, if those of the disk are for another
# ARCH, DEFAULTS (make's target) and CROSS_COMPILE are the kernel's, from the environment.
set -eu
series=6.12
export DEBIAN_FRONTEND=noninteractive

apt() {
	apt-get -qq -o APT::Sandbox::User=root -o Dpkg::Options::=--force-unsafe-io "$@"
}

# prints lines that are not in effect: Kconfig silently drops options with an unmet dependency
missing() {
	while read -r line; do
		case $line in
		CONFIG_*) grep -qxF "$line" .config || echo "$line" ;;
		'# CONFIG_'*) ! grep -q "^$(echo "$line" | cut -d' ' -f2)=" .config || echo "$line" ;;
		esac
	done
}

apt update
apt install -y --no-install-recommends bc bison e2fsprogs flex libelf-dev libssl-dev xz-utils
mkdir /kernel
cd /kernel
apt download "linux-source-$series"
dpkg-deb --fsys-tarfile linux-source-*.deb | tar -xO "./usr/src/linux-source-$series.tar.xz" | tar -xJ --strip-components=1
rm linux-source-*.deb

make -s "$DEFAULTS"
for part; do cat "/recipe/$part.config"; done > asked
scripts/kconfig/merge_config.sh -m .config asked > merged || { cat merged; exit 1; }
make -s olddefconfig
dropped=$(missing < asked)
test -z "$dropped" || { echo "not in effect: $dropped" >&2; exit 1; }
image=$(make -s image_name)
make -s "-j$(nproc)" "${image##*/}" modules

version=$(make -s kernelrelease)
cp "$image" /out/vmlinuz
cp .config /out/config
make -s modules_install INSTALL_MOD_PATH=/installed/usr
modules=/installed/usr/lib/modules/$version
rm "$modules/build"
make -s run-command KBUILD_RUN_COMMAND="scripts/package/install-extmod-build $modules/build"
if test -n "$CROSS_COMPILE"; then
	mkdir -p "/out/kbuild${modules#/installed}/build"
	cp --parents scripts/basic/fixdep scripts/mod/modpost "/out/kbuild${modules#/installed}/build"
fi
truncate -s "$(($(du -sm "$modules" | cut -f1) * 5 / 4 + 32))M" /out/modules.img
mke2fs -q -t ext4 -O ^has_journal -m 0 -L kernel -d /installed /out/modules.img
echo "$version" > /out/version
