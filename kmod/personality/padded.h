/* SPDX-License-Identifier: GPL-2.0-only */
/* Personality padded: what both ends of a connection have to agree on. */
#ifndef NFSRDMA_PERSONALITY_PADDED_H
#define NFSRDMA_PERSONALITY_PADDED_H

#include <linux/bitfield.h>
#include <linux/bits.h>
#include <linux/minmax.h>

#include "personality.h"

/*
 * Messages with padding (personality padded): offset of their data, in bytes. The
 * private data has the largest data that its sender receives, in units.
 */
#define NFR_PADDED_ALIGN	1024
#define NFR_PADDED_UNITS	GENMASK(15, 8)

/*
 * Shortest data that is worth padding: less of it fits into a message of version 1, of
 * @size bytes at most, with anything that may precede padding.
 */
static inline u32 nfr_padded_thresh(u32 size)
{
	return max(size, 2 * NFR_PADDED_ALIGN) - NFR_PADDED_ALIGN;
}

static inline u32 nfr_padded_capability(u32 bytes)
{
	return FIELD_PREP(NFR_PADDED_UNITS, bytes >> NFR_UNIT_SHIFT);
}

static inline u32 nfr_padded_limit(u32 capabilities)
{
	return FIELD_GET(NFR_PADDED_UNITS, capabilities) << NFR_UNIT_SHIFT;
}

#endif
