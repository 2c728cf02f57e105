#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Builds the provider for libibverbs: build.sh RDMA_CORE FOLDER
# RDMA_CORE is the source of the rdma-core version that is installed: libibverbs-dev lacks the headers for providers.
# Writes libnfsrdma_card-rdmavN.so to FOLDER, where N is the version of the private interface of libibverbs.
set -eu
source=$(realpath "$1")
folder=$(realpath "$2")
here=$(dirname "$(realpath "$0")")
include=$(mktemp -d)
trap 'rm -rf "$include"' EXIT

version=$(sed -n 's/^set(IBVERBS_PABI_VERSION "\([0-9]*\)")$/\1/p' "$source/CMakeLists.txt")
mkdir "$include/infiniband" "$include/kernel-abi"
ln -s "$source"/libibverbs/*.h "$source/kernel-headers/rdma/ib_user_ioctl_verbs.h" "$include/infiniband"
ln -s "$source/kernel-headers/rdma" "$source/ccan" "$source/util" "$include"
name=ib_user_verbs.h
python3 "$source/buildlib/make_abi_structs.py" "$include/rdma/$name" "$include/kernel-abi/$name"
cat > "$include/config.h" <<-END
	#define HAVE_STATEMENT_EXPR 1
	#define HAVE_BUILTIN_TYPES_COMPATIBLE_P 1
	#define HAVE_TYPEOF 1
	#define IBVERBS_PABI_VERSION $version
END
# the library's development link belongs to libibverbs-dev
"${CC:-cc}" -std=gnu11 -O2 -Wall -Wextra -Wno-unused-parameter -Werror -fPIC -shared -isystem "$include" \
	-o "$folder/libnfsrdma_card-rdmav$version.so" "$here/provider.c" -l:libibverbs.so.1 -lpthread
