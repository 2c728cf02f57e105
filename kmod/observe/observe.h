/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Counters of transports, and their directories in /sys/kernel/debug/nfsrdma and
 * nfsrdma-server. Other rooms call this one; it calls none.
 */
#ifndef NFSRDMA_OBSERVE_H
#define NFSRDMA_OBSERVE_H

#include <linux/atomic.h>
#include <linux/fs.h>
#include <linux/types.h>

struct dentry;

/* Counters of a client transport; each has one writer */
struct nfr_client_counters {
	/* marshaling */
	u64 read_chunks;
	u64 write_chunks;
	u64 reply_chunks;
	u64 nomsg_calls;
	u64 request_bytes;	/* room offered in Write and Reply chunks, as in rpcrdma */
	u64 pullup_bytes;
	u64 failed_marshals;
	u64 starved;
	/* replies */
	u64 reply_bytes;	/* part of request_bytes that the server used */
	u64 fixup_bytes;
	u64 bad_replies;
	u64 local_invs;
	u64 callbacks;
	u64 fetches;		/* Replies that the client read */
	u64 fetch_reads;	/* RDMA Reads for them */
	u64 fetch_bytes;
	u64 dones;
	/* messages with padding */
	u64 padded_calls;
	u64 padded_replies;
	u64 padded_bytes;
	/* lanes */
	u64 lane_calls;
	u64 lane_bytes;
	u64 lane_fallbacks;	/* READs that suit a lane, and found none */
	u64 lanes_connected;
	u64 lanes_ended;
	/* buffers and connections */
	u64 hardway_bytes;
	u64 mrs_made;
	u64 mrs_recycled;
	u64 mrs_orphaned;
	u64 disconnects;
};

/* Counters of a connection of the server, updated by nfr_svc_count() */
struct nfr_svc_counters {
	atomic64_t calls;
	atomic64_t read_chunks;
	atomic64_t read_bytes;
	atomic64_t write_chunks;
	atomic64_t write_bytes;
	atomic64_t reply_chunks;
	atomic64_t reply_bytes;
	atomic64_t inline_bytes;
	atomic64_t lane_bytes;
	atomic64_t padded_calls;
	atomic64_t padded_replies;
	atomic64_t padded_bytes;
	atomic64_t replies;
	atomic64_t remote_invs;
	atomic64_t errors;
	atomic64_t dropped;
	atomic64_t callbacks;
	atomic64_t queue_waits;
	atomic64_t memory_waits;
	atomic64_t probes;
	atomic64_t exposures;
	atomic64_t exposed_bytes;
	atomic64_t dones;
	atomic64_t stray_dones;
	atomic64_t done_timeouts;
};

void nfr_observe_start(void);
void nfr_observe_stop(void);
struct dentry *nfr_observe_client(u32 number, void *data, const struct file_operations *connection,
				  struct nfr_client_counters *counters);
struct dentry *nfr_observe_svc(u32 number, void *data, const struct file_operations *connection,
			       struct nfr_svc_counters *counters);
void nfr_observe_totals(const struct file_operations *totals);
void nfr_observe_remove(struct dentry *dir);

#endif
