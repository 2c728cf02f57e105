#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Writes the header $1 of the features that the compiler ($2 and following) finds in this kernel's headers.
set -eu
out=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# NAME INCLUDE STATEMENT COMPILER...: define HAVE_NAME if the statement compiles
probe() {
	name=$1 include=$2 statement=$3
	shift 3
	printf '#include <%s>\nvoid card_probe(void);\nvoid card_probe(void)\n{\n\t%s;\n}\n' \
		"$include" "$statement" > "$dir/probe.c"
	if "$@" -fsyntax-only "$dir/probe.c" 2> /dev/null; then
		echo "#define HAVE_$name 1"
	else
		echo "/* no $name */"
	fi
}

{
	echo "/* SPDX-License-Identifier: GPL-2.0-only */"
	# hrtimer_setup() sets a timer's function (7.2); before, a member holds it
	probe HRTIMER_SETUP linux/hrtimer.h \
		'hrtimer_setup((struct hrtimer *)0, 0, 0, HRTIMER_MODE_REL)' "$@"
	# the last argument of create_cq is a bundle of attributes (6.12) or ib_udata (6.1)
	probe CREATE_CQ_ATTRS rdma/ib_verbs.h \
		'((struct ib_device_ops *)0)->create_cq(0, 0, (struct uverbs_attr_bundle *)0)' "$@"
	# reg_user_mr has an argument for a handle of DMA hints (7.2)
	probe REG_USER_MR_DMAH rdma/ib_verbs.h \
		'((struct ib_device_ops *)0)->reg_user_mr(0, 0, 0, 0, 0, (struct ib_dmah *)0, 0)' "$@"
	# a device has an operation of its own for completion queues of user space (7.2)
	probe CREATE_USER_CQ rdma/ib_verbs.h \
		'(void)((struct ib_device_ops *)0)->create_user_cq' "$@"
	# reg_user_mr_dmabuf has a handle of DMA hints (7.2), a bundle of attributes (6.12) or ib_udata (6.1)
	probe REG_DMABUF_DMAH rdma/ib_verbs.h \
		'((struct ib_device_ops *)0)->reg_user_mr_dmabuf(0, 0, 0, 0, 0, 0, (struct ib_dmah *)0, 0)' "$@"
	probe REG_DMABUF_ATTRS rdma/ib_verbs.h \
		'((struct ib_device_ops *)0)->reg_user_mr_dmabuf(0, 0, 0, 0, 0, 0, (struct uverbs_attr_bundle *)0)' "$@"
	# dma_buf_vmap_unlocked() takes the lock (6.12) that dma_buf_vmap() did not need (6.1)
	probe DMA_BUF_VMAP_UNLOCKED linux/dma-buf.h \
		'dma_buf_vmap_unlocked((struct dma_buf *)0, (struct iosys_map *)0)' "$@"
	# the name of a namespace is a symbol (6.12) or a string (7.2)
	probe NAMESPACE_SYMBOL linux/module.h \
		'MODULE_IMPORT_NS(DMA_BUF)' "$@"
	# ib_umem_get_va() replaces ib_umem_get() (7.2)
	probe UMEM_GET_VA rdma/ib_umem.h \
		'ib_umem_get_va((struct ib_device *)0, 0, 0, 0)' "$@"
} > "$out"
