/* SPDX-License-Identifier: GPL-2.0-only */
/* Empty: bcc has included its own copy of bpf.h before it includes this file */
