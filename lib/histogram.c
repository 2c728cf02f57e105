// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Counts of values, by a histogram with a fixed relative error (the idea of HdrHistogram, Gil Tene).
 *
 * Values below 512 have a slot each.  Above, each power of two is cut into 256 slots of one width, so that the highest
 * value of a slot is less than 1/256 above any other one in it.
 */
#include "library.h"
#include "load.h"

#define SLOT_BITS	8
#define PARTS_ALL	100000

static uint32_t slot_of(uint64_t value)
{
	uint32_t shift;

	if (value < 2U << SLOT_BITS)
		return value;
	shift = 63 - __builtin_clzll(value) - SLOT_BITS;
	return (shift << SLOT_BITS) + (value >> shift);
}

/* The highest value with the same slot */
static uint64_t highest_of(uint32_t slot)
{
	uint32_t shift;

	if (slot < 2U << SLOT_BITS)
		return slot;
	shift = (slot >> SLOT_BITS) - 1;
	return ((uint64_t)(slot - (shift << SLOT_BITS)) << shift) + ((1ULL << shift) - 1);
}

EXPORTED void nfsrdma_histogram_record(struct nfsrdma_histogram *histogram, uint64_t value)
{
	if (!histogram->count || value < histogram->least)
		histogram->least = value;
	if (value > histogram->most)
		histogram->most = value;
	histogram->count++;
	histogram->sum += value;
	histogram->slots[slot_of(value)]++;
}

EXPORTED void nfsrdma_histogram_add(struct nfsrdma_histogram *histogram, const struct nfsrdma_histogram *other)
{
	size_t i;

	if (!other->count)
		return;
	if (!histogram->count || other->least < histogram->least)
		histogram->least = other->least;
	if (other->most > histogram->most)
		histogram->most = other->most;
	histogram->count += other->count;
	histogram->sum += other->sum;
	for (i = 0; i < sizeof(histogram->slots) / sizeof(histogram->slots[0]); i++)
		histogram->slots[i] += other->slots[i];
}

EXPORTED uint64_t nfsrdma_histogram_percentile(const struct nfsrdma_histogram *histogram, uint32_t parts)
{
	uint64_t rank, seen = 0, value;
	uint32_t slot;

	if (!histogram->count)
		return 0;
	if (parts >= PARTS_ALL)
		return histogram->most;
	/* of the values in ascending order, from 1, rounded up; exact, as no floating-point number is */
	rank = ((unsigned __int128)histogram->count * parts + PARTS_ALL - 1) / PARTS_ALL;
	if (rank <= 1)
		return histogram->least;
	for (slot = 0; seen + histogram->slots[slot] < rank; slot++)
		seen += histogram->slots[slot];
	value = highest_of(slot);
	return value < histogram->most ? value : histogram->most;
}
