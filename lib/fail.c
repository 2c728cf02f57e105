// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* The line of text about the last failure of a thread. */
#include <stdarg.h>
#include <stdio.h>

#include "library.h"

static __thread char message[512];

/* Note what happened; returns @error */
int fail(int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	return error;
}

int fail_no_memory(void)
{
	return fail(-ENOMEM, "no memory");
}

EXPORTED const char *nfsrdma_message(void)
{
	return message;
}
