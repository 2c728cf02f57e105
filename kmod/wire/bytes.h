/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Access to XDR words (RFC 4506) by byte, because they may be unaligned.
 * Internal to this folder.
 */
#ifndef NFSRDMA_WIRE_BYTES_H
#define NFSRDMA_WIRE_BYTES_H

#include "wire/wire.h"

/* RDMA segment on the wire: handle, length, offset (RFC 8166, section 3.4.2) */
#define NFR_SEGMENT_BYTES	16

static inline u32 nfr_load32(const u8 *at)
{
	return (u32)at[0] << 24 | (u32)at[1] << 16 | (u32)at[2] << 8 | at[3];
}

static inline void nfr_store32(u8 *at, u32 value)
{
	at[0] = value >> 24;
	at[1] = value >> 16 & 0xff;
	at[2] = value >> 8 & 0xff;
	at[3] = value & 0xff;
}

#endif
