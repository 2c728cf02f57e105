#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In an image with extras: makes an archive of the packages that tests remove from or install on a node,
# because nodes have no network.
set -eu
rm -f /var/cache/apt/archives/*.deb
# also downloads its dependencies
apt-get -qq -y --no-install-recommends --download-only install firewalld \
	man-db python3-cffi python3-psutil python3-pyroute2 python3-rich python3-typer
mkdir -p /opt/archive
mv /var/cache/apt/archives/*.deb /opt/archive
cd /opt/archive
apt-get -qq -o APT::Sandbox::User=root download nfs-common nfs-kernel-server rpcbind libnfsidmap1 keyutils
for deb in *.deb; do
	dpkg-deb --field "$deb"
	printf 'Filename: ./%s\nSize: %s\n' "$deb" "$(stat -c %s "$deb")"
	printf 'SHA256: %s\n\n' "$(sha256sum "$deb" | cut -d' ' -f1)"
done > Packages
