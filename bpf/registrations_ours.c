/* SPDX-License-Identifier: GPL-2.0-only */
/* Memory regions of module nfsrdma; see registrations.c. */

PROBE(nfsrdma, nfsrdma_mr_map)
{
	struct region_key key = { .transport = args->xprt, .number = args->handle };

	region_mapped(&key, 1, args->xprt, args->offset, args->length);
	return 0;
}

PROBE(nfsrdma, nfsrdma_mr_fastreg)
{
	region_event(1, args->xprt, REGISTERED);
	return 0;
}

/* personality cached */
PROBE(nfsrdma, nfsrdma_mr_reuse)
{
	region_event(1, args->xprt, REUSED);
	return 0;
}

PROBE(nfsrdma, nfsrdma_mr_localinv)
{
	region_event(1, args->xprt, LOCAL_INVALIDATIONS);
	return 0;
}

PROBE(nfsrdma, nfsrdma_mr_remoteinv)
{
	region_event(1, args->xprt, REMOTE_INVALIDATIONS);
	return 0;
}

PROBE(nfsrdma, nfsrdma_mr_unmap)
{
	struct region_key key = { .transport = args->xprt, .number = args->handle };

	region_unmapped(&key);
	return 0;
}
