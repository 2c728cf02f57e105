#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# mmdebstrap setup hook: $1 is the empty root. Debian 12 and backports are there to be asked by name only.
set -eu
mkdir -p "$1/etc/apt/preferences.d"
printf 'Package: *\nPin: release n=bookworm*\nPin-Priority: 100\n' > "$1/etc/apt/preferences.d/kernels"
printf '\nPackage: linux-base\nPin: release n=trixie-backports\nPin-Priority: 500\n' >> "$1/etc/apt/preferences.d/kernels"
