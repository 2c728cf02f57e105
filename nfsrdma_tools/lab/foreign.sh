#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# foreign.sh COMMAND...: runs a command for which the kernel starts programs of arm64 with qemu-aarch64-static.
# If the host does not do so for all, root gets a user namespace that does (Linux 6.7); it maps all IDs to
# themselves, and ends with the command.
set -eu
interpreter=/usr/bin/qemu-aarch64-static
test ! -e /proc/sys/fs/binfmt_misc/qemu-aarch64 || exec "$@"
test -x $interpreter || { echo "not installed: qemu-user-static" >&2; exit 1; }
test "$(id -u)" = 0 || { echo "programs of arm64 do not run here: systemctl restart systemd-binfmt" >&2; exit 1; }

# an ELF header of 64 bits, little-endian, of an executable or a library, machine 183
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
pipes=$(mktemp -d)
trap 'rm -r "$pipes"' EXIT
mkfifo "$pipes/made" "$pipes/mapped"
# F: opens the interpreter now, so that it need not be in a root; OC: for set-user-ID programs
unshare --user --mount sh -ec '
	pipes=$1 line=$2
	shift 2
	echo > "$pipes/made"
	read -r _ < "$pipes/mapped"
	mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
	printf "%s\n" "$line" > /proc/sys/fs/binfmt_misc/register
	exec "$@"' foreign "$pipes" ":qemu-aarch64:M::$magic:$mask:$interpreter:OCF" "$@" &
read -r _ < "$pipes/made"
for ids in uid gid; do echo 0 0 4294967295 > "/proc/$!/${ids}_map"; done
echo > "$pipes/mapped"
wait $!
