/* SPDX-License-Identifier: GPL-2.0-only */
/* Empty: bcc includes this file and has functions of its own, bpf_log2() and bpf_log2l() */
