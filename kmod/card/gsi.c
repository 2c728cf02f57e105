// SPDX-License-Identifier: GPL-2.0-only
/*
 * Management datagrams (MADs), which ib_cm sends from queue pair 1 of one card to
 * queue pair 1 of another. The receiver gets the datagram after 40 bytes for a
 * routing header, as in RoCE v2: an IPv6 header, or an IPv4 header in the last 20
 * bytes. Datagrams that cannot be delivered are dropped, as on a network.
 */
#include <linux/ip.h>
#include <net/ip.h>
#include <net/ipv6.h>

#include "queues.h"

/* Maximum length of a datagram: the MTU of the path */
#define CARD_GSI_MAX		4096

/* Length of the UDP header of RoCE v2, after the routing header */
#define CARD_UDP_HEADER		8

/* Write the routing header of a datagram; returns its type */
static enum rdma_network_type card_gsi_header(union rdma_network_hdr *header,
					      const struct card_path *path, u32 length)
{
	u32 payload = CARD_UDP_HEADER + length;

	memset(header, 0, sizeof(*header));
	if (ipv6_addr_v4mapped((const struct in6_addr *)&path->dgid)) {
		struct iphdr *ip = &header->roce4grh;

		ip->version = IPVERSION;
		ip->ihl = sizeof(*ip) / 4;
		ip->tos = path->traffic_class;
		ip->tot_len = htons(sizeof(*ip) + payload);
		ip->ttl = path->hop_limit;
		ip->protocol = IPPROTO_UDP;
		memcpy(&ip->saddr, path->sgid.raw + 12, 4);
		memcpy(&ip->daddr, path->dgid.raw + 12, 4);
		ip->check = ip_fast_csum(ip, ip->ihl);
		return RDMA_NETWORK_IPV4;
	}
	header->ibgrh.version_tclass_flow = htonl(6 << 28 | path->traffic_class << 20);
	header->ibgrh.paylen = htons(payload);
	header->ibgrh.next_hdr = IPPROTO_UDP;
	header->ibgrh.hop_limit = path->hop_limit;
	header->ibgrh.sgid = path->sgid;
	header->ibgrh.dgid = path->dgid;
	return RDMA_NETWORK_IPV6;
}

static bool card_gsi_accepts(const struct card_qp *gsi, const struct card_send *send)
{
	return (gsi->state == IB_QPS_RTR || gsi->state == IB_QPS_RTS) && !gsi->stopped &&
	       gsi->rq.head != gsi->rq.tail && send->qpn == 1 && send->qkey == gsi->attr.qkey;
}

/* Copy header and data to the oldest receive; returns the list that refused access, or NULL */
static struct card_sg *card_gsi_copy(struct card_qp *qp, struct card_send *send,
				     struct card_qp *gsi, union rdma_network_hdr *header,
				     struct card_sg *ours)
{
	const struct card_recv *recv = card_ring_slot(&gsi->rq, gsi->rq.tail);
	struct card_sg theirs, *refused;

	card_sg_init(&theirs, gsi, recv->sge, recv->num_sge, IB_ACCESS_LOCAL_WRITE, 0);
	card_sg_flat(ours, header, sizeof(*header));
	refused = card_copy(&theirs, ours, sizeof(*header));
	if (send->flags & IB_SEND_INLINE)
		card_sg_flat(ours, send->data, send->length);
	else
		card_sg_init(ours, qp, send->sge, send->num_sge, 0, 0);
	if (!refused)
		refused = card_copy(&theirs, ours, send->length);
	card_sg_end(ours);
	card_sg_end(&theirs);
	return refused;
}

/* The receiver's lock is held */
static void card_gsi_deliver(struct card_qp *qp, struct card_send *send, struct card_qp *gsi)
{
	struct ib_wc wc = {
		.opcode = IB_WC_RECV, .qp = &gsi->ib, .port_num = 1, .src_qp = qp->ib.qp_num,
		.byte_len = sizeof(union rdma_network_hdr) + send->length, .sl = send->path.sl,
		.wc_flags = IB_WC_GRH | IB_WC_WITH_NETWORK_HDR_TYPE,
	};
	const struct card_recv *recv = card_ring_slot(&gsi->rq, gsi->rq.tail);
	union rdma_network_hdr header;
	struct card_sg ours, *refused;

	/* a datagram longer than the receive is dropped */
	if (wc.byte_len > recv->length)
		return;
	wc.network_hdr_type = card_gsi_header(&header, &send->path, send->length);
	if (send->path.vlan != 0xffff) {
		wc.wc_flags |= IB_WC_WITH_VLAN;
		wc.vlan_id = send->path.vlan;
	}
	refused = card_gsi_copy(qp, send, gsi, &header, &ours);
	if (refused == &ours) {
		send->status = IB_WC_LOC_PROT_ERR;
		send->fatal = true;
	}
	if (refused)
		return;
	wc.wr_id = recv->wr_id;
	gsi->rq.tail++;
	card_count(qp->card, CARD_COUNT_DATAGRAMS);
	card_cq_push(to_card_cq(gsi->ib.recv_cq), &wc, send->flags & IB_SEND_SOLICITED, false);
}

/**
 * card_gsi_send - send a management datagram
 * @qp: queue pair 1 of the sender
 * @send: datagram; succeeds also if the datagram is dropped
 *
 * Softirqs are disabled.
 */
void card_gsi_send(struct card_qp *qp, struct card_send *send)
{
	struct card *to;
	unsigned long flags;

	if (send->length > CARD_GSI_MAX) {
		send->status = IB_WC_LOC_LEN_ERR;
		send->fatal = true;
		return;
	}
	if (!card_is_up(qp->card) || atomic_dec_if_positive(&qp->card->lose) >= 0) {
		card_count(qp->card, CARD_COUNT_LOST);
		return;
	}
	spin_lock_bh(&cards_lock);
	to = card_at(&send->path);
	if (to && card_is_up(to) && to->gsi) {
		spin_lock_irqsave(&to->gsi->lock, flags);
		if (card_gsi_accepts(to->gsi, send))
			card_gsi_deliver(qp, send, to->gsi);
		spin_unlock_irqrestore(&to->gsi->lock, flags);
	}
	spin_unlock_bh(&cards_lock);
}
