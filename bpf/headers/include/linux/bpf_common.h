/* SPDX-License-Identifier: GPL-2.0-only */
/* Empty: bcc's copy of bpf.h includes this file, whose names of instructions no program uses */
