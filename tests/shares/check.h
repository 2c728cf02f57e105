/* SPDX-License-Identifier: Apache-2.0 */
/* A condition that holds, or the test ends. */
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what) do {							\
	if (!(what)) {								\
		printf("%s, line %d\n", #what, __LINE__);			\
		exit(1);							\
	}									\
} while (0)
