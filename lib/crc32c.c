// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * CRC-32C (RFC 3720, section 12.1), by the instruction of the processor if there is one.
 *
 * The polynomial is 0x1edc6f41; its bits are reversed here, as those of the data are.
 */
#include <pthread.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#endif

#include "library.h"

#define POLYNOMIAL	0x82f63b78U

/* of 8 bytes at a time: the remainder of a byte with 0 to 7 zero bytes behind it */
static uint32_t remainders[8][256];
static pthread_once_t remainders_once = PTHREAD_ONCE_INIT;

static void fill_remainders(void)
{
	uint32_t i, bit, zeros, crc;

	for (i = 0; i < 256; i++) {
		crc = i;
		for (bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
		remainders[0][i] = crc;
	}
	for (i = 0; i < 256; i++)
		for (zeros = 1; zeros < 8; zeros++)
			remainders[zeros][i] = remainders[zeros - 1][i] >> 8 ^
					       remainders[0][remainders[zeros - 1][i] & 0xff];
}

static uint32_t crc_by_table(uint32_t crc, const uint8_t *at, size_t left)
{
	pthread_once(&remainders_once, fill_remainders);
	for (; left >= 8; at += 8, left -= 8)
		crc = remainders[7][(crc ^ at[0]) & 0xff] ^ remainders[6][(crc >> 8 ^ at[1]) & 0xff] ^
		      remainders[5][(crc >> 16 ^ at[2]) & 0xff] ^ remainders[4][crc >> 24 ^ at[3]] ^
		      remainders[3][at[4]] ^ remainders[2][at[5]] ^ remainders[1][at[6]] ^ remainders[0][at[7]];
	for (; left; at++, left--)
		crc = crc >> 8 ^ remainders[0][(crc ^ *at) & 0xff];
	return crc;
}

#if defined(__x86_64__)

static bool has_instruction(void)
{
	return __builtin_cpu_supports("sse4.2");
}

__attribute__((target("sse4.2"))) static uint32_t crc_by_instruction(uint32_t crc, const uint8_t *at, size_t left)
{
	uint64_t wide = crc, word;

	for (; left >= sizeof(word); at += sizeof(word), left -= sizeof(word)) {
		memcpy(&word, at, sizeof(word));
		wide = __builtin_ia32_crc32di(wide, word);
	}
	for (; left; at++, left--)
		wide = __builtin_ia32_crc32qi(wide, *at);
	return wide;
}

#elif defined(__aarch64__) && defined(__AARCH64EL__)

/* HWCAP_CRC32 of asm/hwcap.h */
#define CRC_BIT	(1UL << 7)

static bool has_instruction(void)
{
	return getauxval(AT_HWCAP) & CRC_BIT;
}

__attribute__((target("+crc"))) static uint32_t crc_by_instruction(uint32_t crc, const uint8_t *at, size_t left)
{
	uint64_t word;

	for (; left >= sizeof(word); at += sizeof(word), left -= sizeof(word)) {
		memcpy(&word, at, sizeof(word));
		crc = __builtin_aarch64_crc32cx(crc, word);
	}
	for (; left; at++, left--)
		crc = __builtin_aarch64_crc32cb(crc, *at);
	return crc;
}

#else

static bool has_instruction(void)
{
	return false;
}

#define crc_by_instruction	crc_by_table

#endif

uint32_t crc32c_of(const void *data, size_t length)
{
	return ~(has_instruction() ? crc_by_instruction : crc_by_table)(~0U, data, length);
}
