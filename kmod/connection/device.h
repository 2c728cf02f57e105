/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Events of RDMA devices.
 */
#ifndef NFSRDMA_CONNECTION_DEVICE_H
#define NFSRDMA_CONNECTION_DEVICE_H

struct ib_device;
struct nfr_conn;
struct seq_file;

void nfr_conn_device_use(struct nfr_conn *conn);
void nfr_conn_device_unuse(struct nfr_conn *conn);
void nfr_conn_devices_show(struct seq_file *seq,
			   void (*show)(struct seq_file *seq, struct ib_device *device));
int nfr_conn_devices_start(void);
void nfr_conn_devices_stop(void);

#endif
