/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two functions of libcuda, by their documentation: an export is a memfd of the range's size, whose pages are those of
 * the GPU.  A test gets a descriptor of each by standin_export().
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define INVALID_VALUE	1
#define NOT_SUPPORTED	801
#define HANDLE_FD	1

static struct {
	uint64_t address;
	size_t size;
	int fd;
} exports[16];
static unsigned int nexports;
static int next_error;

int cuMemGetHandleForAddressRange(void *handle, unsigned long long address, size_t size, int type,
				  unsigned long long flags)
{
	size_t page = sysconf(_SC_PAGESIZE);
	int fd;

	if (next_error)
		return next_error;
	if (type != HANDLE_FD || flags || !size || address % page || size % page ||
	    nexports == sizeof(exports) / sizeof(exports[0]))
		return INVALID_VALUE;
	fd = memfd_create("gpu", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)size))
		return INVALID_VALUE;
	exports[nexports].address = address;
	exports[nexports].size = size;
	exports[nexports++].fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	*(int *)handle = fd;
	return 0;
}

int cuGetErrorName(int error, const char **name)
{
	if (error != INVALID_VALUE && error != NOT_SUPPORTED)
		return INVALID_VALUE;
	*name = error == NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_INVALID_VALUE";
	return 0;
}

/* The descriptor of an export; -1: there was none */
int standin_export(unsigned int number, unsigned long long *address, size_t *size)
{
	if (number >= nexports)
		return -1;
	*address = exports[number].address;
	*size = exports[number].size;
	return exports[number].fd;
}

/* Forget all exports; from now on they fail with an error, unless that is 0 */
void standin_reset(int error)
{
	while (nexports)
		close(exports[--nexports].fd);
	next_error = error;
}
