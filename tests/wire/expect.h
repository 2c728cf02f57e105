/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Programs of tests that end with the first result that they don't expect, and a reason on standard output */
#ifndef EXPECT_H
#define EXPECT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include <nfsrdma.h>

__attribute__((format(printf, 2, 3))) static void expect(bool condition, const char *format, ...)
{
	va_list args;

	if (condition)
		return;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf(": %s\n", nfsrdma_message());
	fflush(stdout);
	_exit(1);
}

#endif /* EXPECT_H */
