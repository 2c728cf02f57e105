# SPDX-License-Identifier: Apache-2.0
# make_root DISK [FOLDER]...: $root is a folder to chroot into, with the programs of an image and its FOLDERs.
# Needs a mount namespace, and no root. debugfs reads the disk, because a user may not mount it. The copy is
# in a tmpfs of this process, and ends with it.
make_root() {
	disk=$1
	shift
	root=$(mktemp -d)
	trap 'umount -l "$root"; rmdir "$root"' EXIT
	mount -t tmpfs tmpfs "$root"
	mkdir -p "$root/usr/share" "$root/etc" "$root/dev" "$root/proc" "$root/tmp"
	# debugfs complains of owners that it cannot set, and succeeds without a file: make says what is missing
	for folder in usr/bin usr/lib usr/lib64 usr/libexec etc/alternatives "$@"; do
		echo "rdump $folder $root/${folder%/*}"
	done | debugfs -f - "$disk" >/dev/null 2>&1
	ln -s usr/bin usr/lib usr/lib64 "$root"
	for folder in dev proc; do mount --rbind "/$folder" "$root/$folder"; done
}
