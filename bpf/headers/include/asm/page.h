/* SPDX-License-Identifier: GPL-2.0-only */
/* bcc's size of a ring is in pages. probes/program.py defines PAGE_BITS */
#define PAGE_SHIFT	PAGE_BITS
#define PAGE_SIZE	(1UL << PAGE_SHIFT)
