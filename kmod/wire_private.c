// SPDX-License-Identifier: GPL-2.0-only
/*
 * The private data two ends exchange while they connect: RFC 8797, section 4.
 */
#include "wire.h"
#include "wire_bytes.h"

#define PRIVATE_MAGIC		0xf6ab0e18
#define PRIVATE_VERSION		1
#define PRIVATE_REMOTE_INV	0x01
#define PRIVATE_UNIT		1024	/* bytes; an octet counts them from one */
#define PRIVATE_MAX		(256 * PRIVATE_UNIT)

/* An inline size to the octet that says it, RFC 8797, section 4 */
static u8 size_to_octet(u32 bytes)
{
	if (bytes < PRIVATE_UNIT)
		return 0;
	if (bytes > PRIVATE_MAX)
		bytes = PRIVATE_MAX;
	return bytes / PRIVATE_UNIT - 1;
}

/**
 * nfr_wire_encode_private - write the CM private data
 * @priv: what this end can do; sizes are rounded down to 1024 bytes and held
 *	between 1 and 256 KiB
 * @buf: NFR_WIRE_PRIVATE bytes
 */
void nfr_wire_encode_private(const struct nfr_private *priv, u8 *buf)
{
	nfr_store32(buf, PRIVATE_MAGIC);
	buf[4] = PRIVATE_VERSION;
	buf[5] = priv->remote_invalidation ? PRIVATE_REMOTE_INV : 0;
	buf[6] = size_to_octet(priv->send_size);
	buf[7] = size_to_octet(priv->recv_size);
}

/**
 * nfr_wire_decode_private - read the peer's CM private data
 * @priv: filled in: what the peer said, or what version 1 assumes of a peer
 *	that said nothing: 1024 bytes both ways, no remote invalidation
 * @buf: what came with the connection event, NULL when @len is 0
 * @len: bytes at @buf; InfiniBand pads with zeros, so only the magic and the
 *	version tell whether the peer said anything
 */
void nfr_wire_decode_private(struct nfr_private *priv, const u8 *buf, size_t len)
{
	*priv = (struct nfr_private){
		.send_size = PRIVATE_UNIT,
		.recv_size = PRIVATE_UNIT,
	};
	if (len < NFR_WIRE_PRIVATE || nfr_load32(buf) != PRIVATE_MAGIC || buf[4] != PRIVATE_VERSION)
		return;
	priv->remote_invalidation = buf[5] & PRIVATE_REMOTE_INV;
	priv->send_size = (buf[6] + 1) * PRIVATE_UNIT;
	priv->recv_size = (buf[7] + 1) * PRIVATE_UNIT;
}
