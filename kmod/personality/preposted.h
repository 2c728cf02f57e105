/* SPDX-License-Identifier: GPL-2.0-only */
/* Personality pre-posted: what both ends of a connection have to agree on. */
#ifndef NFSRDMA_PERSONALITY_PREPOSTED_H
#define NFSRDMA_PERSONALITY_PREPOSTED_H

#include <linux/bitfield.h>
#include <linux/bits.h>

#include "personality.h"

/*
 * Lanes of the personality pre-posted: the private data has the amount of data that one
 * message may carry, in units; the client's limit, then the one that applies.
 */
#define NFR_LANE_UNITS		GENMASK(23, 16)
#define NFR_LANE_UNITS_MAX	255u

/* Messages of one Reply on a lane */
#define NFR_LANE_MESSAGES	20

/* Largest Call, and largest Reply without its data, on a lane; in bytes */
#define NFR_LANE_INLINE		2048

/* Scatter-gather elements that a lane uses per message */
#define NFR_LANE_SGES		32u

/* Elements beyond one per page of data: the head, and data that is not aligned to pages */
#define NFR_LANE_SPARE_SGES	2

/* Largest READ, in bytes */
#define NFR_LANE_BYTES		(1024u * 1024)

/* Elements that a device takes for each message */
static inline u32 nfr_lane_sges(u32 most)
{
	return most < NFR_LANE_SGES ? most : NFR_LANE_SGES;
}

/* Units of data that a message of a device has, whose elements may be a page each; 0: no lanes */
static inline u32 nfr_lane_units(u32 most)
{
	u32 sges = nfr_lane_sges(most), pages, units;

	pages = sges > NFR_LANE_SPARE_SGES ? sges - NFR_LANE_SPARE_SGES : 0;
	units = pages * NFR_UNITS_PER_PAGE;
	return units < NFR_LANE_UNITS_MAX ? units : NFR_LANE_UNITS_MAX;
}

/* The largest READ of a device, in bytes */
static inline u32 nfr_lane_bytes(u32 most)
{
	u32 bytes = (nfr_lane_units(most) * NFR_LANE_MESSAGES) << NFR_UNIT_SHIFT;

	return bytes < NFR_LANE_BYTES ? bytes : NFR_LANE_BYTES;
}

#endif
