// SPDX-License-Identifier: GPL-2.0-only
/*
 * Model of time: processing units, each busy for some time with every message,
 * and one line out with a rate and a latency.
 *
 * Functions here do not wait. They compute the times at which a message leaves
 * and arrives from the times at which units and line become free; engine.c waits
 * for them. There is no model of the line in: the sender's line stands for both.
 */
#include <linux/hash.h>
#include <linux/math64.h>
#include <linux/slab.h>

#include "queues.h"

/*
 * Header bytes of each packet, counted as a queueing discipline counts those of
 * TCP: Ethernet, IPv4, UDP, base transport header, ICRC. The first packet of a
 * Read or Write also has the remote address.
 */
#define CARD_PACKET_HEADER	(14 + 20 + 8 + 12 + 4)
#define CARD_ADDRESS_HEADER	16

/**
 * card_wire_init - initialize a wire without delays
 * @wire: zeroed
 */
void card_wire_init(struct card_wire *wire)
{
	spin_lock_init(&wire->lock);
	wire->units = 1;
}

/**
 * card_wire_is_on - whether messages of a card take time
 * @card: card
 */
bool card_wire_is_on(const struct card *card)
{
	const struct card_wire *wire = &card->wire;

	return READ_ONCE(wire->rate) || READ_ONCE(wire->latency) || READ_ONCE(wire->message) ||
	       READ_ONCE(wire->completion_delay) || READ_ONCE(wire->qps.entries);
}

/* --- units and line --- */

/*
 * Reserve the unit that becomes free first, from @at on, for a message and @more nanoseconds.
 * Returns the end of its work.
 */
static u64 card_unit_take(struct card_wire *wire, u64 at, u64 more)
{
	u32 units = clamp_t(u32, READ_ONCE(wire->units), 1, CARD_MAX_UNITS);
	u64 *first = &wire->unit[0];
	u32 i;

	for (i = 1; i < units; i++)
		if (wire->unit[i] < *first)
			first = &wire->unit[i];
	*first = max(*first, at) + READ_ONCE(wire->message) + more;
	return *first;
}

/*
 * Reserve the line for @ns from @at on; returns the end. The answer to a Read is
 * reserved ahead of time, so the line is idle before it. Later messages can use
 * the last such gap.
 */
static u64 card_line_take(struct card_line *line, u64 at, u64 ns)
{
	u64 start = max(at, line->gap_from);

	if (start + ns <= line->gap_to) {
		line->gap_from = start + ns;
		return start + ns;
	}
	if (at > line->free) {
		line->gap_from = line->free;
		line->gap_to = at;
	}
	line->free = max(at, line->free) + ns;
	return line->free;
}

static u64 card_line_ns(const struct card_wire *wire, const struct card_qp *qp, u32 length,
			u32 more)
{
	u32 mtu = ib_mtu_enum_to_int(qp->attr.path_mtu);
	u64 rate = READ_ONCE(wire->rate), bytes;

	if (!rate)
		return 0;
	if (card_is_gsi(qp) || (int)mtu <= 0)
		mtu = 4096;
	bytes = length + more + (u64)max(DIV_ROUND_UP(length, mtu), 1U) * CARD_PACKET_HEADER;
	/* at most 2 GiB with headers: no overflow */
	return div64_u64(bytes * BITS_PER_BYTE * NSEC_PER_SEC, rate);
}

/* Time that the line needs for a request; of a Read only the request leaves by it */
static u64 card_send_ns(const struct card_wire *wire, const struct card_qp *qp,
			const struct card_send *send)
{
	bool read = send->opcode == IB_WR_RDMA_READ;
	bool addressed = read || send->opcode == IB_WR_RDMA_WRITE ||
			 send->opcode == IB_WR_RDMA_WRITE_WITH_IMM;

	return card_line_ns(wire, qp, read ? 0 : send->length,
			    addressed ? CARD_ADDRESS_HEADER : 0);
}

/* Time at which the last byte of a message leaves that is ready at @at, and takes a unit @more */
static u64 card_wire_leave(struct card_wire *wire, u64 at, u64 more, u64 ns)
{
	u64 left;

	spin_lock_bh(&wire->lock);
	left = card_line_take(&wire->line, card_unit_take(wire, at, more), ns);
	spin_unlock_bh(&wire->lock);
	return left;
}

/**
 * card_wire_start - set the times of a request that leaves the card
 * @qp: queue pair
 * @send: request; gets the time of its arrival and the delay of the answer
 * @now: time
 *
 * For a Read the delay is an estimate until card_wire_answer().
 */
void card_wire_start(struct card_qp *qp, struct card_send *send, u64 now)
{
	struct card_wire *wire = &qp->card->wire;
	u64 latency = READ_ONCE(wire->latency);

	send->exec_at = card_wire_leave(wire, now, card_wire_look_up(qp),
					card_send_ns(wire, qp, send)) + latency;
	if (card_is_gsi(qp))
		return;
	send->reply = latency;
	if (send->opcode == IB_WR_RDMA_READ)
		send->reply += READ_ONCE(wire->message) + card_line_ns(wire, qp, send->length, 0);
}

/* End a reservation earlier, but not before @now */
static u64 card_shorten(u64 end, u64 ns, u64 now)
{
	return end > now ? max(now, end - min(ns, end)) : end;
}

static void card_wire_give(struct card_wire *wire, u64 ns, u64 messages, u64 now)
{
	u32 units = clamp_t(u32, READ_ONCE(wire->units), 1, CARD_MAX_UNITS), i;
	u64 each = DIV_ROUND_UP_ULL(messages, units) * READ_ONCE(wire->message);

	spin_lock_bh(&wire->lock);
	wire->line.free = card_shorten(wire->line.free, ns, now);
	/* the gap may have been before one of the requests */
	wire->line.gap_from = 0;
	wire->line.gap_to = 0;
	for (i = 0; i < units; i++)
		wire->unit[i] = card_shorten(wire->unit[i], each, now);
	spin_unlock_bh(&wire->lock);
}

/**
 * card_wire_cancel - give back the reservations of requests that have not left the card
 * @qp: claimed or stopped queue pair, which will not execute its requests
 *
 * Otherwise a consumer that posts and resets could reserve the line for hours.
 */
void card_wire_cancel(struct card_qp *qp)
{
	struct card_wire *wire = &qp->card->wire;
	u64 now = ktime_get_ns(), arrives = now + READ_ONCE(wire->latency);
	u64 ns = 0, messages = 0;
	u32 at;

	for (at = qp->executed; qp->timed && at != qp->started; at++) {
		const struct card_send *send = card_ring_slot(&qp->sq, at);

		if (card_is_local(send) || send->unanswered || send->exec_at <= arrives)
			continue;
		ns += card_send_ns(wire, qp, send);
		messages++;
	}
	if (messages)
		card_wire_give(wire, ns, messages, now);
}

/**
 * card_wire_answer - reserve the peer's line for the answer to a Read
 * @card: card of the peer
 * @qp: queue pair that reads
 * @send: Read, which arrived at send->exec_at
 *
 * Return: nanoseconds from its arrival until the answer arrives.
 */
u64 card_wire_answer(struct card *card, const struct card_qp *qp, const struct card_send *send)
{
	struct card_wire *wire = &card->wire;
	u64 left;

	left = card_wire_leave(wire, send->exec_at, 0, card_line_ns(wire, qp, send->length, 0));
	return left - send->exec_at + READ_ONCE(wire->latency);
}

/* --- caches --- */

/* Look up an entry, and add it if the cache lacks it; the lock is held */
static bool card_cache_misses(struct card_cache *cache, u64 tag)
{
	u64 *slot = &cache->tags[hash_64(tag, 32) % cache->entries];

	if (*slot == tag)
		return false;
	*slot = tag;
	return true;
}

/**
 * card_wire_translate - translate the addresses of a Read or Write
 * @card: card that has the region
 * @mr: region from card_key_enter()
 * @addr: start of the access
 * @length: in bytes, not 0
 *
 * Each page of a region for fast registration takes an entry of the cache. A
 * region of all memory needs no translation.
 * Return: nanoseconds for cache misses.
 */
u64 card_wire_translate(struct card *card, const struct card_mr *mr, u64 addr, u64 length)
{
	u64 start = mr->offset + (addr - mr->iova), page, misses = 0;
	struct card_wire *wire = &card->wire;
	struct card_cache *cache = &wire->pages;

	if (!READ_ONCE(cache->entries) || !mr->max_ranges)
		return 0;
	spin_lock_bh(&wire->lock);
	for (page = start >> PAGE_SHIFT; cache->entries; page++) {
		if (page > (start + length - 1) >> PAGE_SHIFT)
			break;
		misses += card_cache_misses(cache, (u64)mr->key << 32 | (u32)(page + 1));
	}
	spin_unlock_bh(&wire->lock);
	card_count_add(card, CARD_COUNT_CACHE_MISSES, misses);
	return misses * READ_ONCE(cache->miss);
}

/**
 * card_wire_look_up - look up the state of a queue pair in its card
 * @qp: queue pair that sends or receives a message
 *
 * Return: nanoseconds for a cache miss.
 */
u64 card_wire_look_up(struct card_qp *qp)
{
	struct card_wire *wire = &qp->card->wire;
	struct card_cache *cache = &wire->qps;
	bool misses;

	if (!READ_ONCE(cache->entries) || card_is_gsi(qp))
		return 0;
	spin_lock_bh(&wire->lock);
	/* 0 is the tag of an empty entry, and the number of no such queue pair */
	misses = cache->entries && card_cache_misses(cache, qp->ib.qp_num);
	spin_unlock_bh(&wire->lock);
	card_count_add(qp->card, CARD_COUNT_QP_MISSES, misses);
	return misses ? READ_ONCE(cache->miss) : 0;
}

/**
 * card_wire_set_cache - set the size of a cache, and empty it
 * @wire: wire of the cache
 * @cache: cache
 * @entries: 0 for no cache, at most CARD_MAX_CACHE
 *
 * Return: 0, -EINVAL or -ENOMEM.
 */
int card_wire_set_cache(struct card_wire *wire, struct card_cache *cache, u32 entries)
{
	u64 *tags = NULL;

	if (entries > CARD_MAX_CACHE)
		return -EINVAL;
	if (entries) {
		tags = kvcalloc(entries, sizeof(*tags), GFP_KERNEL);
		if (!tags)
			return -ENOMEM;
	}
	spin_lock_bh(&wire->lock);
	swap(cache->tags, tags);
	WRITE_ONCE(cache->entries, entries);
	spin_unlock_bh(&wire->lock);
	kvfree(tags);
	return 0;
}
