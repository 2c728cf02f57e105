/* SPDX-License-Identifier: Apache-2.0 */
#include "server/server.h"
static inline bool nfr_conn_is_retired(const struct nfr_conn *conn, u32 mark)
{
	return mark < conn->retired;
}
