/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Time from posting to completion of rpcrdma's Replies; see server.c. Most
 * Sends of nfsrdma are unsignaled.
 */
struct server_send {
	struct server_key key;	/* of the Send, not of the Call */
	u64 posted;		/* 0: slot is unused */
	struct server_id id;
	u32 number;		/* row of the Call */
};

BPF_ARRAY(server_sends, struct server_send, TASK_SLOTS);

static inline struct server_send *server_send(struct server_key *key)
{
	int slot = server_slot(key);

	return server_sends.lookup(&slot);
}

PROBE(rpcrdma, svcrdma_post_send)
{
	SERVER_KEY(key);
	struct server_call *call = server_call_here();
	struct server_send *send = server_send(&key);

	if (!call || !send)
		return 0;
	call->counts[SERVER_INVALIDATES] = !!args->inv_rkey;
	send->key = key;
	send->id = call->id;
	send->number = number_of(&call->id, sizeof(call->id));
	server_done(call, send->number);
	send->posted = call->last;
	return 0;
}

PROBE(rpcrdma, svcrdma_wc_send)
{
	SERVER_KEY(key);
	struct server_send *send = server_send(&key);
	struct server_row *row;

	if (!send || !send->posted || !server_same(&send->key, &key))
		return 0;
	row = server_row(&send->id, send->number);
	if (row) {
		row->phases[SERVER_SEND] += bpf_ktime_get_ns() - send->posted;
		row->counts[SERVER_SENDS]++;
	}
	send->posted = 0;
	return 0;
}
