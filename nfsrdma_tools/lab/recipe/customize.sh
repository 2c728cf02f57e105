#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# mmdebstrap customize hook: kernels, the toolkit's libraries, the files of a node, and the disk image.
# $1: the root. RECIPE: this folder. SITE: the Python libraries. KEYS: ssh keys. OUT: where the image goes.
set -eu
root=$1
kernels="6.12 6.1 7.2"

cp -r "$RECIPE/files/." "$root"
chmod 755 "$root"/usr/local/sbin/* "$root"/usr/local/bin/*
printf 'virtio_pci\nvirtio_blk\next4\n' > "$root/etc/initramfs-tools/modules"

# the newest of each series, whatever it is called today
available=$(chroot "$root" apt-cache search --names-only '^linux-image-[0-9.]*.*-amd64$' | cut -d' ' -f1 | grep -v -e cloud -e rt-amd64 -e unsigned -e dbg)
packages=
for series in $kernels; do
	newest=$(echo "$available" | grep "^linux-image-$series\.[0-9]" | sort -V | tail -n 1)
	test -n "$newest" || { echo "no kernel $series in the archive" >&2; exit 1; }
	packages="$packages $newest linux-headers-${newest#linux-image-}"
done
chroot "$root" apt-get install -y -q --no-install-recommends $packages
chroot "$root" sh -s -- $kernels < "$RECIPE/siw.sh"
chroot "$root" sh -s < "$RECIPE/archive.sh"
# udev's persistent names and mail of timers have no use here, and each unit costs boot time
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
	systemd-pstore.service systemd-tmpfiles-clean.timer e2scrub_reap.service getty@tty1.service \
	serial-getty@ttyS0.service nfs-server.service nfs-blkmap.service iwpmd.service; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
rm -f "$root/etc/systemd/system/nfs-server.service"
chroot "$root" systemctl disable -q nfs-server.service nftables.service krb5-kdc.service krb5-admin-server.service
chroot "$root" systemctl enable -q systemd-networkd.service ssh.service rpcbind.service
chroot "$root" systemctl disable -q systemd-networkd-wait-online.service

# somebody who is not root, for Kerberos and for permissions
chroot "$root" useradd -m -u 1000 -s /bin/sh lab

mkdir -p "$root/opt/nfsrdma/src" "$root/export" "$root/mnt" "$root/root/.ssh"
cp -r "$SITE" "$root/opt/nfsrdma/site"
find "$root/opt/nfsrdma/site" -type d -name tests -prune -exec rm -rf {} +
chroot "$root" python3 -m compileall -q /opt/nfsrdma/site >/dev/null || true
rm -f "$root"/etc/ssh/ssh_host_*
cp "$KEYS/host" "$root/etc/ssh/ssh_host_ed25519_key"
cp "$KEYS/host.pub" "$root/etc/ssh/ssh_host_ed25519_key.pub"
cp "$KEYS/user.pub" "$root/root/.ssh/authorized_keys"
chmod 600 "$root/etc/ssh/ssh_host_ed25519_key" "$root/root/.ssh/authorized_keys"
chown -R 0:0 "$root/root" "$root/etc/ssh" "$root/opt"
echo lab > "$root/etc/hostname"
: > "$root/etc/machine-id"

rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb
for series in $kernels; do
	version=$(basename "$(ls -d "$root"/lib/modules/$series.* | tail -n 1)")
	mkdir -p "$OUT/$series"
	cp "$root/boot/vmlinuz-$version" "$OUT/$series/vmlinuz"
	cp "$root/boot/initrd.img-$version" "$OUT/$series/initrd"
	printf '%s\n' "$version" > "$OUT/$series/version"
done
truncate -s 6G "$OUT/disk.img"
# /proc, /sys and /dev are mounted below the root while hooks run; a plain bind mount does not show them
view=$(mktemp -d)
trap 'umount "$view"; rmdir "$view"' EXIT
mount --bind "$root" "$view"
mke2fs -q -t ext4 -O ^has_journal -L nfsrdma-lab -d "$view" "$OUT/disk.img"
# mmdebstrap's own, for as long as this is no machine: packages would start and stop no daemon
debugfs -w -R "rm /usr/sbin/policy-rc.d" "$OUT/disk.img" 2>/dev/null
# without root this runs as a subordinate user, whose files the caller has to move and remove
chmod -R a+rwX "$OUT"/*
