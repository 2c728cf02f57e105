/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * bcc asks whether the kernel is 4.8 or later, and puts a version into the
 * program, which kernels ignore since 5.0 (commit 6c4fc209fcf9, "bpf: remove
 * useless version check for prog load"). Probe sets ask for features.
 */
#define KERNEL_VERSION(a, b, c)	(((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE	KERNEL_VERSION(5, 0, 0)
