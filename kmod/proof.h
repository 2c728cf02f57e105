/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Proof that a peer cannot reach memory any more.
 *
 * Memory that a peer may have reached returns to its owner with proof only: its key was
 * invalidated, its queue pair is drained, or its queue pair and its region are destroyed. A
 * device whose command channel fails may refuse each of these. Then the memory stays where it is,
 * until the device complies. Only a device that is being removed, or has reported a fatal error,
 * has limited time for that: its removal may be what resets it, and waits for this module. After
 * that time, the regions are given up, and their pages stay allocated for ever.
 */
#ifndef NFSRDMA_PROOF_H
#define NFSRDMA_PROOF_H

/*
 * Pauses between attempts to destroy what a device refused to destroy, in milliseconds: they grow
 * from the first to the last
 */
#define NFR_DESTROY_AGAIN	50
#define NFR_DESTROY_MAX		1000

/* Time for a device that ends to destroy its regions, in jiffies */
#define NFR_DESTROY_ENDS	(10 * HZ)

/**
 * enum nfr_proof - what the end of a connection has achieved
 * @NFR_PROOF_NONE: nothing: the peer may reach memory, and completions may occur
 * @NFR_PROOF_FENCED: the queue pair is in the error state: the peer reaches nothing by it, but
 *	the device may not have finished what it had begun
 * @NFR_PROOF_DRAINED: moreover, all work requests are complete, and their handlers have run
 * @NFR_PROOF_DESTROYED: the device refused to drain the queue pair, and has destroyed it. Work
 *	requests that had not completed never will. Regions may still be valid
 */
enum nfr_proof {
	NFR_PROOF_NONE,
	NFR_PROOF_FENCED,
	NFR_PROOF_DRAINED,
	NFR_PROOF_DESTROYED,
};

#endif
