/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * bcc includes this first. It refuses a kernel without CONFIG_BPF_SYSCALL;
 * where bcc runs at all, the running kernel has it.
 */
#define CONFIG_BPF_SYSCALL	1
