// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Encode and decode the private data that the peers exchange when they connect
 * (RFC 8797, section 4), and the extension of this module that follows it:
 *
 *   bytes 8 to 11   magic number
 *   byte  12        version
 *   bytes 13 to 15  0, ignored
 *   bytes 16 to 19  capabilities
 *   bytes 20 to 27  token
 *
 * A version differs from the previous one only by fields at the end.
 */
#include "wire/wire.h"

#define PRIVATE_MAGIC		0xf6ab0e18
#define PRIVATE_VERSION		1
#define PRIVATE_REMOTE_INV	0x01
#define PRIVATE_UNIT		1024	/* bytes; the size octets encode units - 1 */
#define PRIVATE_MAX		(256 * PRIVATE_UNIT)

#define EXTENSION_MAGIC		0x4e465258	/* "NFRX" */
#define EXTENSION_VERSION	1

/* RFC 8797, section 4 */
static u8 size_to_octet(u32 bytes)
{
	if (bytes < PRIVATE_UNIT)
		return 0;
	if (bytes > PRIVATE_MAX)
		bytes = PRIVATE_MAX;
	return bytes / PRIVATE_UNIT - 1;
}

static void encode_extension(const struct nfr_private *priv, u8 *buf)
{
	nfr_wire_store32(buf, EXTENSION_MAGIC);
	nfr_wire_store32(buf + 4, (u32)EXTENSION_VERSION << 24);
	nfr_wire_store32(buf + 8, priv->capabilities);
	nfr_wire_store32(buf + 12, priv->token >> 32);
	nfr_wire_store32(buf + 16, (u32)priv->token);
}

static void decode_extension(struct nfr_private *priv, const u8 *buf)
{
	if (nfr_wire_load32(buf) != EXTENSION_MAGIC || !buf[4])
		return;
	priv->extended = true;
	priv->capabilities = nfr_wire_load32(buf + 8);
	priv->token = (u64)nfr_wire_load32(buf + 12) << 32 | nfr_wire_load32(buf + 16);
}

/**
 * nfr_wire_encode_private - encode the CM private data
 * @priv: properties of this end
 * @buf: output buffer of NFR_WIRE_PRIVATE_MAX bytes
 *
 * The encoding rounds sizes down to a multiple of 1024 bytes and clamps them to
 * 1 KiB to 256 KiB.
 *
 * Return: length of the private data in bytes.
 */
size_t nfr_wire_encode_private(const struct nfr_private *priv, u8 *buf)
{
	nfr_wire_store32(buf, PRIVATE_MAGIC);
	buf[4] = PRIVATE_VERSION;
	buf[5] = priv->remote_invalidation ? PRIVATE_REMOTE_INV : 0;
	buf[6] = size_to_octet(priv->send_size);
	buf[7] = size_to_octet(priv->recv_size);
	if (!priv->extended)
		return NFR_WIRE_PRIVATE;
	encode_extension(priv, buf + NFR_WIRE_PRIVATE);
	return NFR_WIRE_PRIVATE_MAX;
}

/**
 * nfr_wire_decode_private - decode the CM private data of the peer
 * @priv: decoded data, or the RFC 8166 defaults (1024 bytes each way, no remote
 *	invalidation) if @buf holds none
 * @buf: private data of the connection event; NULL if @len is 0
 * @len: length of @buf in bytes
 *
 * InfiniBand pads private data with zeros, so that @len alone does not tell
 * whether the peer sent any. The magic number and the version do.
 */
void nfr_wire_decode_private(struct nfr_private *priv, const u8 *buf, size_t len)
{
	*priv = (struct nfr_private){
		.send_size = PRIVATE_UNIT,
		.recv_size = PRIVATE_UNIT,
	};
	if (len < NFR_WIRE_PRIVATE || nfr_wire_load32(buf) != PRIVATE_MAGIC ||
	    buf[4] != PRIVATE_VERSION)
		return;
	priv->given = true;
	priv->remote_invalidation = buf[5] & PRIVATE_REMOTE_INV;
	priv->send_size = (buf[6] + 1) * PRIVATE_UNIT;
	priv->recv_size = (buf[7] + 1) * PRIVATE_UNIT;
	if (len >= NFR_WIRE_PRIVATE_MAX)
		decode_extension(priv, buf + NFR_WIRE_PRIVATE);
}
