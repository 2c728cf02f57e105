#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In an image: soft iWARP for each kernel series $@, from Debian's own kernel source; its packages
# have soft RoCE alone.
set -eu
work=$(mktemp -d)
cd "$work"
for series in "$@"; do
	version=$(basename "$(ls -d "/lib/modules/$series".* | tail -n 1)")
	apt-get -qq -o APT::Sandbox::User=root download "linux-source-$series"
	dpkg-deb --fsys-tarfile linux-source-*.deb | tar -xO "./usr/src/linux-source-$series.tar.xz" |
		tar -xJ --wildcards --strip-components=4 '*/drivers/infiniband/sw/siw'
	make -s -C "/lib/modules/$version/build" "M=$work/siw" CONFIG_RDMA_SIW=m modules
	strip --strip-debug siw/siw.ko
	install -D -m 644 siw/siw.ko "/lib/modules/$version/updates/siw.ko"
	depmod "$version"
	rm -r siw linux-source-*.deb
done
rmdir "$work"
