// SPDX-License-Identifier: Apache-2.0
/*
 * Random clients of kmod/server/short.c, in user space: SEED STEPS CLIENTS.
 *
 * Connections end under Sends of random lengths, and the limit of each client is compared with that
 * of a model: the 64 addresses that came last, each with its shortest Send that was refused, or
 * under which two connections in turn ended, for a minute.
 */
#include "check.h"

#include "server/server.h"

static unsigned long jiffies;

#include "server/short.c"

#define MOST	256
#define MINUTE	(60ul * HZ)
#define REQS	4

/* The model: @known if a connection of the client ended; @length is 0 if no Send is too long */
struct client {
	struct nfr_svc_first first;
	struct nfr_conn conn;
	struct nfr_svc svc;
	u32 length;
	u32 suspect;
	bool known;
	unsigned long ended;
};

static struct client clients[MOST];
static u32 count, limited, believed, forgotten, expired;

/* Number of clients whose connections ended later */
static u32 later(const struct client *client)
{
	u32 i, n = 0;

	for (i = 0; i < count; i++)
		n += clients[i].known && time_before(client->ended, clients[i].ended);
	return n;
}

/* Whether the client still has its entry. */
static bool remembered(const struct client *client)
{
	return client->known && time_before(jiffies, client->ended + MINUTE) && later(client) < 64;
}

static u32 expected(const struct client *client)
{
	if (!client->length)
		return U32_MAX;
	if (!remembered(client)) {
		if (time_before(jiffies, client->ended + MINUTE))
			forgotten++;
		else
			expired++;
		return U32_MAX;
	}
	limited++;
	return client->length - 1;
}

/* Few lengths: a client may end two connections under the same. */
static u32 random_length(void)
{
	return 1025 + rand() % 4 * 16384;
}

/* End a connection with some requests, of which those that were sent and not acknowledged count. */
static void end(struct client *client)
{
	struct nfr_svc_req reqs[REQS];
	u32 i, shortest = 0;
	bool refused, left;

	INIT_LIST_HEAD(&client->svc.all);
	client->conn.retired = rand() % 4;
	/* a refused client also disconnects, and its disconnect may be the reason that is kept */
	refused = !(rand() % 4);
	left = rand() % 4;
	client->conn.left = left;
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
	if (refused)
		nfr_svc_short_refused(&client->svc);
	nfr_svc_short_drained(&client->svc);
	if (!shortest || !(refused || left))
		return;
	if (!remembered(client))
		client->length = client->suspect = 0;
	/* what is remembered still counts */
	if ((refused || shortest == client->suspect) &&
	    (!client->length || shortest < client->length)) {
		believed += !refused;
		client->length = shortest;
	}
	client->suspect = shortest;
	client->known = true;
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
	printf("%u %u %u %u\n", limited, believed, expired, forgotten);
	return 0;
}
