#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# mmdebstrap customize hook: the toolkit's libraries, the files of a node, and the disk image.
# $1: the root. RECIPE: this folder. SITE: the Python libraries. KEYS: ssh keys. OUT: where the image goes.
set -eu
root=$1

cp -r "$RECIPE/files/." "$root"
chmod 755 "$root"/usr/local/sbin/* "$root"/usr/local/bin/*

# Each unit costs boot time. The initrd configures eth0, and lab-node the other interfaces; consoles need no
# login; nodes need no random seed, binary formats or timers.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
	systemd-pstore.service systemd-tmpfiles-clean.timer e2scrub_reap.service getty@tty1.service \
	serial-getty@ttyS0.service nfs-blkmap.service iwpmd.service systemd-networkd.service \
	systemd-networkd.socket systemd-network-generator.service systemd-logind.service systemd-binfmt.service \
	proc-sys-fs-binfmt_misc.automount systemd-random-seed.service systemd-udev-load-credentials.service \
	rdma-ndd.service rdma-load-modules@rdma.service rdma-load-modules@infiniband.service \
	rdma-load-modules@roce.service; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
for unit in nfs-server nftables krb5-kdc krb5-admin-server; do
	test ! -e "$root/usr/lib/systemd/system/$unit.service" || chroot "$root" systemctl disable -q "$unit.service"
done
# this generator would load the socket modules of other hypervisors and wait for them
mkdir -p "$root/etc/systemd/system-generators"
ln -s /dev/null "$root/etc/systemd/system-generators/systemd-ssh-generator"
chroot "$root" systemctl enable -q ssh.service rpcbind.service

# an unprivileged user for Kerberos and permissions
chroot "$root" useradd -m -u 1000 -s /bin/sh lab

mkdir -p "$root/opt/nfsrdma/src" "$root/export" "$root/mnt" "$root/root/.ssh"
cp -r "$SITE" "$root/opt/nfsrdma/site"
find "$root/opt/nfsrdma/site" -type d -name tests -prune -exec rm -rf {} +
chroot "$root" python3 -m compileall -q -j 0 /opt/nfsrdma/site >/dev/null || true
rm -f "$root"/etc/ssh/ssh_host_*
cp "$KEYS/host" "$root/etc/ssh/ssh_host_ed25519_key"
cp "$KEYS/host.pub" "$root/etc/ssh/ssh_host_ed25519_key.pub"
cp "$KEYS/user.pub" "$root/root/.ssh/authorized_keys"
chmod 600 "$root/etc/ssh/ssh_host_ed25519_key" "$root/root/.ssh/authorized_keys"
chown -R 0:0 "$root/root" "$root/etc/ssh" "$root/opt"
echo lab > "$root/etc/hostname"
# the build host's name server: a lab has none, and programs would wait for it
rm -f "$root/etc/resolv.conf"
: > "$root/etc/machine-id"

rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb
# else systemd repeats the work of the packages' triggers at boot
touch "$root/etc/.updated" "$root/var/.updated"
truncate -s 6G "$OUT/disk.img"
# /proc, /sys and /dev are mounted below the root while hooks run; a plain bind mount does not show them
view=$(mktemp -d)
trap 'umount "$view"; rmdir "$view"' EXIT
mount --bind "$root" "$view"
mke2fs -q -t ext4 -O ^has_journal -L nfsrdma-lab -d "$view" "$OUT/disk.img"
# mmdebstrap's policy-rc.d keeps packages from starting and stopping daemons: a machine must not have it
debugfs -w -R "rm /usr/sbin/policy-rc.d" "$OUT/disk.img" 2>/dev/null
# without root this runs as a subordinate user: let the caller move and remove the files
chmod -R a+rwX "$OUT"/*
