/* SPDX-License-Identifier: GPL-2.0-only */
/* Personalities: protocol variants, of which both ends of a connection agree on one. */
#ifndef NFSRDMA_PERSONALITY_H
#define NFSRDMA_PERSONALITY_H

#include <linux/bits.h>
#include <linux/mm.h>
#include <linux/types.h>

struct net;
struct sockaddr;

/*
 * All personalities: number, constant, symbol, and name as the parameters accept it. The numbers
 * are part of the private data: do not change them.
 *
 * A new one is a line here, a table nfr_client_SYMBOL in client/personality/, a table
 * nfr_svc_SYMBOL in server/personality/, and their object files in Kbuild. What both ends have to
 * agree on is in a header in personality/.
 */
#define NFR_PERSONALITY_LIST(_)							\
	/* RFC 8166 as it is */							\
	_(0, READ_WRITE, readwrite, "read-write")				\
	/* both ends read: the design of 2003 */				\
	_(1, READ_READ, readread, "read-read")					\
	/* small data in messages, aligned to pages */				\
	_(2, PADDED, padded, "padded")						\
	/* receives in the memory of the caller */				\
	_(3, PRE_POSTED, preposted, "pre-posted")				\
	/* registrations survive their Call */					\
	_(4, CACHED, cached, "cached")						\
	/* the client reads the server's page cache */				\
	_(5, OPTIMISTIC, optimistic, "optimistic")

#define NFR_PERSONALITY_NUMBER(_number, _constant, _symbol, _name)	NFR_##_constant = _number,

enum nfr_personality {
	NFR_PERSONALITY_LIST(NFR_PERSONALITY_NUMBER)
	NFR_PERSONALITIES,
};

/* Capability bit of a personality in the private data; read-write has none */
static inline u32 nfr_personality_bit(enum nfr_personality personality)
{
	return BIT(personality) >> 1;
}

/* Capability of further connections of a transport, which join the first one by its token */
#define NFR_LANE		BIT(31)

/* Further connections that one transport may have */
#define NFR_LANES_MAX		64

/*
 * Sizes in the private data are in units of 4096 bytes: client and server may have pages of
 * different sizes. A page is one unit or more.
 */
#define NFR_UNIT_SHIFT		12
#define NFR_UNITS_PER_PAGE	(1u << (PAGE_SHIFT - NFR_UNIT_SHIFT))

int nfr_personality_start(void);
void nfr_personality_stop(void);
const char *nfr_personality_name(enum nfr_personality personality);
enum nfr_personality nfr_personality_for(const struct net *net, const struct sockaddr *server);
enum nfr_personality nfr_personality_agree(u32 capabilities);

#endif
