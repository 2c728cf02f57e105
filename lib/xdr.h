/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * XDR (RFC 4506): words, and bytes that are rounded up to words.
 *
 * The results of the server are taken from a struct rpc_body, which knows the number of bytes left.
 */
#ifndef NFSRDMA_XDR_H
#define NFSRDMA_XDR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct rpc_body {
	const uint8_t *at;
	size_t left;
};

static inline uint32_t load32(const uint8_t *at)
{
	return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline void store32(uint8_t *at, uint32_t value)
{
	at[0] = value >> 24;
	at[1] = value >> 16;
	at[2] = value >> 8;
	at[3] = value;
}

static inline uint8_t *put32(uint8_t *at, uint32_t value)
{
	store32(at, value);
	return at + 4;
}

static inline uint8_t *put64(uint8_t *at, uint64_t value)
{
	at = put32(at, value >> 32);
	return put32(at, value);
}

static inline uint32_t padded(uint32_t bytes)
{
	return (bytes + 3) & ~3U;
}

/* Opaque data of variable length (RFC 4506, section 4.10) */
static inline uint8_t *put_opaque(uint8_t *at, const void *data, uint32_t length)
{
	at = put32(at, length);
	memcpy(at, data, length);
	memset(at + length, 0, padded(length) - length);
	return at + padded(length);
}

static inline bool take32(struct rpc_body *body, uint32_t *value)
{
	if (body->left < 4)
		return false;
	*value = load32(body->at);
	body->at += 4;
	body->left -= 4;
	return true;
}

static inline bool take64(struct rpc_body *body, uint64_t *value)
{
	uint32_t high, low;

	if (!take32(body, &high) || !take32(body, &low))
		return false;
	*value = (uint64_t)high << 32 | low;
	return true;
}

static inline bool skip(struct rpc_body *body, size_t bytes)
{
	if (body->left < bytes)
		return false;
	body->at += bytes;
	body->left -= bytes;
	return true;
}

/* An optional part of results: a word that is 0 or 1, and @bytes after a 1 */
static inline bool skip_optional(struct rpc_body *results, size_t bytes)
{
	uint32_t present;

	return take32(results, &present) && present <= 1 && skip(results, present ? bytes : 0);
}

#endif
