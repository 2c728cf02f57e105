/* SPDX-License-Identifier: GPL-2.0-only */
/* Personality optimistic: what both ends of a connection have to agree on. */
#ifndef NFSRDMA_PERSONALITY_OPTIMISTIC_H
#define NFSRDMA_PERSONALITY_OPTIMISTIC_H

#include <linux/bitfield.h>
#include <linux/bits.h>

#include "personality.h"

/*
 * Optimistic reads: the server's private data on the branch has the size of an
 * extent in units, as a power of two.
 */
#define NFR_EXTENT_ORDER	GENMASK(23, 16)
#define NFR_EXTENT_ORDER_MAX	8
/* The largest extent, and the largest READ, in bytes */
#define NFR_EXTENT_MAX		(1u << (NFR_EXTENT_ORDER_MAX + NFR_UNIT_SHIFT))

/* Notices that the server may send before the client returns credits */
#define NFR_NOTICES		64

#endif
