/* SPDX-License-Identifier: GPL-2.0-only */
/* Server of module nfsrdma; see server.c. */

PROBE(nfsrdma, nfsrdma_svc_call)
{
	struct server_key key = { .number = args->xid };
	struct server_call *call = server_begin(&key);

	if (!call)
		return 0;
	call->counts[SERVER_READ_CALLS] = !!args->reads;
	call->counts[SERVER_ROOM] = args->reply_room;
	return 0;
}

PROBE(nfsrdma, nfsrdma_svc_read)
{
	struct server_key key = { .number = args->xid };
	struct server_call *call = server_call(&key);

	if (!call)
		return 0;
	call->counts[SERVER_READ_SEGMENTS] += args->requests;
	call->counts[SERVER_READ_BYTES] += args->length;
	return 0;
}

PROBE(nfsrdma, nfsrdma_svc_chunk)
{
	struct server_call *call = server_call_here();

	if (!call)
		return 0;
	/* write, reply */
	call->counts[args->kind[0] == 'w' ? SERVER_WRITE_CALLS : SERVER_REPLY_CALLS] = 1;
	call->counts[SERVER_WRITTEN] += args->length;
	return 0;
}

PROBE(nfsrdma, nfsrdma_svc_reply)
{
	struct server_call *call = server_call_here();

	if (!call)
		return 0;
	call->counts[SERVER_INVALIDATES] = args->invalidates;
	server_done(call, number_of(&call->id, sizeof(call->id)));
	return 0;
}
