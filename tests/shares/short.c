// SPDX-License-Identifier: Apache-2.0
/*
 * Random clients of kmod/server/short.c, in user space: SEED STEPS CLIENTS.
 *
 * Connections end under Sends of random lengths, and the limit of each client is compared with that
 * of a model: the 64 addresses that came last, each with its shortest Send, for a minute.
 */
#include "check.h"

#include "server/server.h"

static unsigned long jiffies;

#include "server/short.c"

#define MOST	256
#define MINUTE	(60ul * HZ)
#define REQS	4

/* The model: @length is 0 if no connection of the client ended */
struct client {
	struct nfr_svc_first first;
	struct nfr_conn conn;
	struct nfr_svc svc;
	u32 length;
	unsigned long ended;
};

static struct client clients[MOST];
static u32 count, limited, forgotten, expired;

/* Number of clients whose connections ended later */
static u32 later(const struct client *client)
{
	u32 i, n = 0;

	for (i = 0; i < count; i++)
		n += clients[i].length && time_before(client->ended, clients[i].ended);
	return n;
}

static u32 expected(const struct client *client)
{
	if (!client->length)
		return U32_MAX;
	if (!time_before(jiffies, client->ended + MINUTE)) {
		expired++;
		return U32_MAX;
	}
	if (later(client) >= 64) {
		forgotten++;
		return U32_MAX;
	}
	limited++;
	return client->length - 1;
}

static u32 random_length(void)
{
	return 1025 + rand() % 65536;
}

/* End a connection with some requests, of which those that were sent and not acknowledged count. */
static void end(struct client *client)
{
	struct nfr_svc_req reqs[REQS];
	bool answers = rand() % 8;
	u32 i, shortest = 0;

	INIT_LIST_HEAD(&client->svc.all);
	client->conn.retired = rand() % 4;
	client->conn.reason = answers ? "the peer disconnected" :
					ib_wc_status_msg(IB_WC_RETRY_EXC_ERR);
	for (i = 0; i < REQS; i++) {
		reqs[i].state = rand() % 2 ? NFR_SVC_SENT : NFR_SVC_REPLYING;
		reqs[i].unlimited = rand() % 2 ? random_length() : 0;
		reqs[i].mark = rand() % 4;
		list_add_tail(&reqs[i].all, &client->svc.all);
		if (reqs[i].state == NFR_SVC_SENT && reqs[i].unlimited &&
		    reqs[i].mark >= client->conn.retired &&
		    (!shortest || reqs[i].unlimited < shortest))
			shortest = reqs[i].unlimited;
	}
	nfr_svc_short_broken(&client->svc);
	if (!shortest || !answers)
		return;
	/* what is remembered still counts */
	if (expected(client) != U32_MAX && client->length < shortest)
		shortest = client->length;
	client->length = shortest;
	client->ended = jiffies;
}

int main(int argc, char **argv)
{
	/* the same address in two network namespaces is two clients */
	struct net *nets[] = { (void *)1, (void *)2 };
	u32 i, step, steps;

	if (argc != 4)
		return 2;
	srand(atoi(argv[1]));
	steps = atoi(argv[2]);
	count = atoi(argv[3]);
	if (count > MOST)
		return 2;
	/* it wraps while the clients run */
	jiffies = -MINUTE;
	for (i = 0; i < count; i++) {
		clients[i].first.xprt.xpt_net = nets[i % 2];
		clients[i].svc.first = &clients[i].first;
		clients[i].svc.conn = &clients[i].conn;
		clients[i].svc.remote.number = i / 2;
	}
	for (step = 0; step < steps; step++) {
		jiffies += 1 + (rand() % 256 ? rand() % (MINUTE / 256) : MINUTE);
		end(&clients[rand() % count]);
		i = rand() % count;
		CHECK(nfr_svc_short_limit(&clients[i].svc) == expected(&clients[i]));
		CHECK(nfr_svc_short_count <= 64);
	}
	printf("%u %u %u\n", limited, expired, forgotten);
	return 0;
}
