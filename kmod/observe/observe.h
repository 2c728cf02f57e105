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
struct seq_file;

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
	u64 calls_kept;		/* abandoned, with memory that the transport kept */
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
	u64 lane_fallbacks;	/* READs that found no idle lane, or are too long for one */
	u64 lanes_connected;
	u64 lanes_ended;
	/* optimistic reads */
	u64 optimistic_reads;
	u64 optimistic_bytes;
	u64 optimistic_refused;	/* by the peer's device */
	u64 optimistic_misses;	/* READs without a reference, an RDMA Read, or room in it */
	u64 optimistic_polled;	/* reads that the sender polled for */
	u64 optimistic_pauses;
	u64 optimistic_connects;
	/* buffers and connections */
	u64 hardway_bytes;
	u64 mrs_made;
	u64 mrs_recycled;
	u64 mrs_orphaned;
	u64 disconnects;
};

/* Why a client may not read an extent any more (personality optimistic) */
enum nfr_revoked {
	NFR_REVOKED_MODIFIED,
	NFR_REVOKED_ATTRIBUTES,
	NFR_REVOKED_MOVED,
	NFR_REVOKED_OPENED,	/* for writing, or leased */
	NFR_REVOKED_LISTENER,	/* decides about accesses, or asks for reports of them */
	NFR_REVOKED_UNMOUNTED,
	NFR_REVOKED_EXPIRED,
	NFR_REVOKED_LIMIT,	/* of all clients, or of one */
	NFR_REVOKED_MEMORY,	/* short */
	NFR_REVOKED_REPLACED,	/* by a larger one */
	NFR_REVOKED_REASONS,
};

/* Why the server did not let a client read an extent after a READ */
enum nfr_refused {
	NFR_REFUSED_FILE,	/* on a file system that does not suit, or without pages of it */
	NFR_REFUSED_OPEN,	/* for writing */
	NFR_REFUSED_LEASE,	/* or a delegation */
	NFR_REFUSED_LISTENER,	/* decides about accesses, or asks for reports of them */
	NFR_REFUSED_CHANGED,	/* since nfsd checked access, perhaps */
	NFR_REFUSED_BUSY,	/* another thread grants or revokes */
	NFR_REFUSED_PAGES,	/* not in the page cache any more */
	NFR_REFUSED_LIMIT,
	NFR_REFUSED_MEMORY,	/* no memory, or no region */
	NFR_REFUSED_CREDITS,	/* the client has no room for notices */
	NFR_REFUSED_DEVICE,	/* the device does not see what the processor writes later */
	NFR_REFUSED_REASONS,
};

/* Result of a READ that the server may answer without a thread */
enum nfr_threadless {
	NFR_THREADLESS_HIT,
	NFR_THREADLESS_ABSENT,		/* nfsd has not answered a READ of this file and user */
	NFR_THREADLESS_EXPIRED,		/* nfsd has, more than a second ago */
	NFR_THREADLESS_CHANGED,		/* the file, since then */
	NFR_THREADLESS_OPEN,		/* for writing */
	NFR_THREADLESS_LEASE,
	NFR_THREADLESS_LISTENER,	/* for accesses */
	NFR_THREADLESS_PAGES,		/* not in the page cache */
	NFR_THREADLESS_SIZE,		/* too large, or not within the file */
	NFR_THREADLESS_MEMORY,		/* short, or the limit of Replies */
	NFR_THREADLESS_QUEUE,		/* full */
	NFR_THREADLESS_SHARE,		/* of the CPU is used up, and a task waits */
	NFR_THREADLESS_RESULTS,
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
	atomic64_t grants;
	atomic64_t grants_renewed;
	atomic64_t grants_revoked;
	atomic64_t revoked[NFR_REVOKED_REASONS];
	atomic64_t refused[NFR_REFUSED_REASONS];
	atomic64_t threadless[NFR_THREADLESS_RESULTS];
	atomic64_t threadless_bytes;
};

const char *nfr_observe_revoked(enum nfr_revoked why);
const char *nfr_observe_threadless(enum nfr_threadless result);
void nfr_observe_threadless_add(struct nfr_svc_counters *sum, const struct nfr_svc_counters *c);
void nfr_observe_threadless_show(struct seq_file *seq, const struct nfr_svc_counters *c);
void nfr_observe_start(void);
void nfr_observe_stop(void);
struct dentry *nfr_observe_client(u32 number, void *data, const struct file_operations *connection,
				  struct nfr_client_counters *counters);
struct dentry *nfr_observe_svc(u32 number, void *data, const struct file_operations *connection,
			       struct nfr_svc_counters *counters);
void nfr_observe_totals(const struct file_operations *totals);
void nfr_observe_devices(const struct file_operations *devices);
void nfr_observe_remove(struct dentry *dir);

#endif
