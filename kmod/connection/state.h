/* SPDX-License-Identifier: GPL-2.0-only */
/* State of a connection: the reason of its end, the fence. */
#ifndef NFSRDMA_CONNECTION_STATE_H
#define NFSRDMA_CONNECTION_STATE_H

#include "connection/connection.h"

extern const char nfr_conn_disconnected[];

void nfr_conn_state_init(struct nfr_conn *conn);
void nfr_conn_state_end(struct nfr_conn *conn);
void nfr_conn_break(struct nfr_conn *conn, const char *reason);
void nfr_conn_break_later(struct nfr_conn *conn, const char *reason);
bool nfr_conn_is_left(const struct nfr_conn *conn);
void nfr_conn_failed(struct nfr_conn *conn, const struct ib_wc *wc);
enum nfr_proof nfr_conn_fence(struct nfr_conn *conn);

#endif
