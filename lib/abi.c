// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Structs of nfsrdma.h that a program of another version gives or gets.
 *
 * Each begins with a size_t, the bytes that the program knows.  Later versions only add members at the end, so that
 * the members that both know are at the same places.  The library reads and writes no byte behind the program's size.
 */
#include <string.h>

#include "library.h"

/* More than any version will have: a size that nobody has set */
#define SIZE_MOST	4096

/* Is @size that of some version, the first one of which has @least bytes?  0, or -EINVAL */
int abi_check(size_t size, size_t least, const char *name)
{
	if (size >= least && size <= SIZE_MOST)
		return 0;
	return fail(-EINVAL, "%s.size: found %zu, expected sizeof(struct nfsrdma_%s), %zu to %d", name, size, name,
		    least, SIZE_MOST);
}

/**
 * abi_take - copy a struct of the caller
 * @to: struct of this version, all zero
 * @known: its bytes
 * @from: struct of the caller's version
 * @least: bytes of the first version
 * @name: for messages
 *
 * Return: 0; -EINVAL for a wrong size; -E2BIG if a member that this version does not know is not 0.
 */
int abi_take(void *to, size_t known, const void *from, size_t least, const char *name)
{
	const uint8_t *bytes = from;
	size_t size, i;
	int rc;

	memcpy(&size, from, sizeof(size));
	rc = abi_check(size, least, name);
	if (rc)
		return rc;
	for (i = known; i < size; i++)
		if (bytes[i])
			return fail(-E2BIG, "%s: version %d.%d.%d has %zu bytes, and byte %zu is set", name,
				    NFSRDMA_VERSION_MAJOR, NFSRDMA_VERSION_MINOR, NFSRDMA_VERSION_PATCH, known, i);
	memcpy(to, from, size < known ? size : known);
	return 0;
}

/**
 * abi_give - fill a struct of the caller, and set its size to the bytes that were filled
 * @to: struct of the caller's version
 * @from: struct of this version
 * @known: its bytes
 * @least: bytes of the first version
 * @name: for messages
 *
 * Return: 0, or -EINVAL for a wrong size.
 */
int abi_give(void *to, const void *from, size_t known, size_t least, const char *name)
{
	size_t size;
	int rc;

	memcpy(&size, to, sizeof(size));
	rc = abi_check(size, least, name);
	if (rc)
		return rc;
	size = size < known ? size : known;
	memcpy(to, from, size);
	memcpy(to, &size, sizeof(size));
	return 0;
}

EXPORTED uint32_t nfsrdma_version(void)
{
	return NFSRDMA_VERSION;
}
