/* SPDX-License-Identifier: Apache-2.0 */
#include "server/server.h"
static inline bool nfr_conn_is_left(const struct nfr_conn *conn)
{
	return conn->left;
}
