/* SPDX-License-Identifier: GPL-2.0-only */
/* Personalities: protocol variants, and what both ends of a connection have to agree on. */
#ifndef NFSRDMA_VARIANTS_H
#define NFSRDMA_VARIANTS_H

#include <linux/bitfield.h>
#include <linux/bits.h>
#include <linux/minmax.h>
#include <linux/types.h>

struct net;
struct sockaddr;

/* The values are part of the private data: do not change them */
enum nfr_variant {
	NFR_READ_WRITE	= 0,	/* RFC 8166 as it is */
	NFR_READ_READ	= 1,	/* both ends read: the design of 2003 */
	NFR_PADDED	= 2,	/* small data in messages, aligned to pages */
	NFR_PRE_POSTED	= 3,	/* receives in the memory of the caller */
	NFR_CACHED	= 4,	/* registrations survive their Call */
	NFR_OPTIMISTIC	= 5,	/* the client reads the server's page cache */
	NFR_VARIANTS,
};

/* Capability bit of a personality in the private data; read-write has none */
static inline u32 nfr_variant_bit(enum nfr_variant variant)
{
	return BIT(variant) >> 1;
}

/* Capability of further connections of a transport, which join the first one by its token */
#define NFR_LANE		BIT(31)

/*
 * Sizes in the private data are in units of 4096 bytes: client and server may have pages of
 * different sizes. A page is one unit or more.
 */
#define NFR_UNIT_SHIFT		12
#define NFR_UNITS_PER_PAGE	(1u << (PAGE_SHIFT - NFR_UNIT_SHIFT))

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

/* Lanes that one transport may have */
#define NFR_LANES_MAX		64

/*
 * Optimistic reads: the server's private data on the branch has the size of an
 * extent in units, as a power of two.
 */
#define NFR_EXTENT_ORDER	GENMASK(23, 16)
#define NFR_EXTENT_ORDER_MAX	8

/* Notices that the server may send before the client returns credits */
#define NFR_NOTICES		64

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

int nfr_variant_start(void);
void nfr_variant_stop(void);
const char *nfr_variant_name(enum nfr_variant variant);
enum nfr_variant nfr_variant_for(const struct net *net, const struct sockaddr *server);
enum nfr_variant nfr_variant_agree(u32 capabilities);

#endif
