// SPDX-License-Identifier: GPL-2.0-only
/*
 * Module parameters: /sys/module/nfsrdma/parameters.
 *
 * Setting a parameter to a value out of range fails with -EINVAL and logs the
 * range. A connection reads the parameters that struct nfr_params has when it is
 * created, so that a change does not affect existing connections.
 */
#include <linux/module.h>
#include <linux/moduleparam.h>

#include "params.h"

/* Numeric parameter: a multiple of @step from @low to @high, or 0 if @zero is set */
struct nfr_number {
	const char *name;
	u32 value;
	u32 low;
	u32 high;
	u32 step;
	bool zero;
};

static bool nfr_number_allows(const struct nfr_number *number, u32 value)
{
	if (!value)
		return number->zero;
	return value >= number->low && value <= number->high && value % number->step == 0;
}

static int nfr_number_set(const char *text, const struct kernel_param *kp)
{
	struct nfr_number *number = kp->arg;
	u32 value;
	int rc;

	rc = kstrtou32(text, 0, &value);
	if (rc)
		return rc;
	if (!nfr_number_allows(number, value)) {
		pr_err("nfsrdma: parameter %s: got %u, expected %s%u to %u in steps of %u\n",
		       number->name, value, number->zero ? "0 or " : "",
		       number->low, number->high, number->step);
		return -EINVAL;
	}
	WRITE_ONCE(number->value, value);
	return 0;
}

static int nfr_number_get(char *buffer, const struct kernel_param *kp)
{
	const struct nfr_number *number = kp->arg;

	return sysfs_emit(buffer, "%u\n", READ_ONCE(number->value));
}

static const struct kernel_param_ops nfr_number_ops = {
	.set = nfr_number_set,
	.get = nfr_number_get,
};

#define NFR_NUMBER(_name, _default, _low, _high, _step, _text)			\
	static struct nfr_number nfr_##_name = {				\
		.name = #_name, .value = _default,				\
		.low = _low, .high = _high, .step = _step, .zero = !_default,	\
	};									\
	module_param_cb(_name, &nfr_number_ops, &nfr_##_name, 0644);		\
	__MODULE_PARM_TYPE(_name, "uint");					\
	MODULE_PARM_DESC(_name, _text ", " #_low " to " #_high " (default " #_default ")")

NFR_NUMBER(inline_send, 8192, 1024, 65536, 1024,
	   "Maximum size of an inline message to send, in bytes");
NFR_NUMBER(inline_recv, 8192, 1024, 65536, 1024,
	   "Maximum size of an inline message to receive, in bytes");
NFR_NUMBER(min_chunk, 65536, 1, 65536, 1,
	   "Minimum size of data to move in a chunk even if it fits inline, in bytes");
NFR_NUMBER(credits, 128, 2, 1024, 1,
	   "Maximum number of Calls in flight per connection");
NFR_NUMBER(mr_depth, 0, 16, 512, 1,
	   "Pages per memory region (0: as many as the device and 1 MiB payloads allow)");
NFR_NUMBER(busy_poll_us, 0, 1, 1000, 1,
	   "Time to poll for completions before sleeping, in microseconds (0: do not poll)");
NFR_NUMBER(lanes, 16, 1, 64, 1,
	   "Maximum number of lanes of a transport with the personality pre-posted");
NFR_NUMBER(padded_max, 16384, 4096, 65536, 4096,
	   "Maximum data of a message with the personality padded, in bytes; each receive has as much memory");

NFR_NUMBER(server_connections, 1024, 1, 65536, 1,
	   "Maximum number of server connections");
NFR_NUMBER(server_memory, 16, 4, 65536, 1,
	   "Memory for RDMA Reads of the server, and the same for its replies, in MiB; a client uses up to a quarter beyond its floor");
NFR_NUMBER(server_floors, 64, 1, 65536, 1,
	   "Memory beyond server_memory for one message of each client, which no other client can take, in MiB; the same for replies");
NFR_NUMBER(server_ack_timeout, 5, 1, 3600, 1,
	   "Time that a client may leave a reply unacknowledged, or an RDMA Read, while another one waits for the memory, in seconds");

NFR_NUMBER(server_threadless, 0, 4096, 131072, 4096,
	   "Maximum size of an NFSv3 READ that the server answers from its page cache without an nfsd thread, in bytes (0: none)");

NFR_NUMBER(cache_memory, 64, 1, 65536, 1,
	   "Memory of processes that stays registered between Calls with personality cached, in MiB");
NFR_NUMBER(server_done_timeout, 30, 1, 3600, 1,
	   "Time that a client may read an exposed reply before its RDMA_DONE (personality read-read), in seconds");

NFR_NUMBER(optimistic_spin_us, 8, 1, 100, 1,
	   "Time to wait for an optimistic read without sleeping, if the last ones were faster, in microseconds");
NFR_NUMBER(optimistic_memory, 256, 1, 65536, 1,
	   "Page cache of the server that clients may read with personality optimistic, in MiB; a client gets a quarter");
NFR_NUMBER(optimistic_lifetime, 60, 1, 3600, 1,
	   "Time that a client may read an extent of a file after its last READ there (personality optimistic), in seconds");

static bool nfr_client = true;
module_param_named(client, nfr_client, bool, 0444);
MODULE_PARM_DESC(client, "Register the client transport rdma (default Y)");

static bool nfr_server_reserved_port;
module_param_named(server_reserved_port, nfr_server_reserved_port, bool, 0644);
MODULE_PARM_DESC(server_reserved_port,
		 "Call a client privileged, as exports with the option secure require, only if its port is below 1024 (default N)");

static char *nfr_server_name = "rdma";
module_param_named(server_name, nfr_server_name, charp, 0444);
MODULE_PARM_DESC(server_name,
		 "Name of the server transport in /proc/fs/nfsd/portlist; empty: no server (default rdma)");

/* How memory is registered, and which side invalidates it */
static const char * const nfr_strategies[] = { "frwr", "frwr-local" };
static u32 nfr_strategy;

static int nfr_strategy_set(const char *text, const struct kernel_param *kp)
{
	int found = sysfs_match_string(nfr_strategies, text);

	if (found < 0) {
		pr_err("nfsrdma: parameter registration: expected frwr or frwr-local\n");
		return found;
	}
	WRITE_ONCE(nfr_strategy, found);
	return 0;
}

static int nfr_strategy_get(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%s\n", nfr_strategies[READ_ONCE(nfr_strategy)]);
}

static const struct kernel_param_ops nfr_strategy_ops = {
	.set = nfr_strategy_set,
	.get = nfr_strategy_get,
};
module_param_cb(registration, &nfr_strategy_ops, NULL, 0644);
__MODULE_PARM_TYPE(registration, "charp");
MODULE_PARM_DESC(registration,
		 "frwr: allow remote invalidation; frwr-local: do not (default frwr)");

/**
 * nfr_params_read - read the parameters of a connection
 * @params: output; all values are in range
 */
void nfr_params_read(struct nfr_params *params)
{
	params->inline_send = READ_ONCE(nfr_inline_send.value);
	params->inline_recv = READ_ONCE(nfr_inline_recv.value);
	params->min_chunk = READ_ONCE(nfr_min_chunk.value);
	params->credits = READ_ONCE(nfr_credits.value);
	params->mr_depth = READ_ONCE(nfr_mr_depth.value);
	params->busy_poll_us = READ_ONCE(nfr_busy_poll_us.value);
	params->padded_max = READ_ONCE(nfr_padded_max.value);
	params->lanes = READ_ONCE(nfr_lanes.value);
	params->optimistic_spin_us = READ_ONCE(nfr_optimistic_spin_us.value);
	params->remote_invalidation = READ_ONCE(nfr_strategy) == 0;
}

/**
 * nfr_params_client - check whether to register the client transport
 *
 * Return: value of the parameter client.
 */
bool nfr_params_client(void)
{
	return nfr_client;
}

/**
 * nfr_params_server_name - get the name of the server transport class
 *
 * Return: name, or "" if there is no server.
 */
const char *nfr_params_server_name(void)
{
	return nfr_server_name;
}

/**
 * nfr_params_server_reserved_port - check whether privileged clients need a reserved port
 *
 * Return: value of the parameter server_reserved_port.
 */
bool nfr_params_server_reserved_port(void)
{
	return READ_ONCE(nfr_server_reserved_port);
}

/**
 * nfr_params_server_connections - get the maximum number of server connections
 *
 * Return: number of connections.
 */
u32 nfr_params_server_connections(void)
{
	return READ_ONCE(nfr_server_connections.value);
}

/**
 * nfr_params_server_pages - get the limit for the pages of RDMA Reads, and for those of Replies
 *
 * Return: number of pages.
 */
u32 nfr_params_server_pages(void)
{
	return READ_ONCE(nfr_server_memory.value) << (20 - PAGE_SHIFT);
}

/**
 * nfr_params_server_floor_pages - get the limit for the sum of the floors of all clients
 *
 * Return: number of pages.
 */
u32 nfr_params_server_floor_pages(void)
{
	return READ_ONCE(nfr_server_floors.value) << (20 - PAGE_SHIFT);
}

/**
 * nfr_params_server_ack_timeout - get the time to wait for an acknowledgment if memory is short
 *
 * Return: time in jiffies.
 */
unsigned long nfr_params_server_ack_timeout(void)
{
	return READ_ONCE(nfr_server_ack_timeout.value) * HZ;
}

/**
 * nfr_params_server_threadless - get the maximum size of a threadless read
 *
 * Return: number of bytes, or 0 if nfsd answers all READs.
 */
u32 nfr_params_server_threadless(void)
{
	return READ_ONCE(nfr_server_threadless.value);
}

/**
 * nfr_params_cache_pages - get the limit for the pages that stay registered between Calls
 *
 * Return: number of pages.
 */
u32 nfr_params_cache_pages(void)
{
	return READ_ONCE(nfr_cache_memory.value) << (20 - PAGE_SHIFT);
}

/**
 * nfr_params_server_done_timeout - get the time to wait for an RDMA_DONE
 *
 * Return: time in jiffies.
 */
unsigned long nfr_params_server_done_timeout(void)
{
	return READ_ONCE(nfr_server_done_timeout.value) * HZ;
}

/**
 * nfr_params_optimistic_pages - get the limit for the page cache that clients may read
 *
 * Return: number of pages.
 */
u32 nfr_params_optimistic_pages(void)
{
	return READ_ONCE(nfr_optimistic_memory.value) << (20 - PAGE_SHIFT);
}

/**
 * nfr_params_optimistic_lifetime - get the time that a client may read an extent
 *
 * Return: time in seconds.
 */
u32 nfr_params_optimistic_lifetime(void)
{
	return READ_ONCE(nfr_optimistic_lifetime.value);
}
