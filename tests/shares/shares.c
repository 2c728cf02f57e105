// SPDX-License-Identifier: Apache-2.0
/*
 * Random clients of kmod/server/share.c, in user space: SEED STEPS CLIENTS FLOORS, the last in MiB.
 *
 * Each client has requests in FIFO order, of which the first is tried again only if share.c woke the
 * client. Checked are the limits, that a client without any pages gets its floor at once, that each
 * client that could go on was woken, and in the end, when all pages are returned, that nobody waits.
 */
#include "check.h"

#include "server/share.c"

#define MEMORY	(16u << (20 - PAGE_SHIFT))
#define LARGEST	257u
#define MOST	64

static u32 floors;

u32 nfr_params_server_pages(void) { return MEMORY; }
u32 nfr_params_server_floor_pages(void) { return floors; }

struct client {
	struct nfr_svc_first first;
	struct nfr_svc svc;
	bool joined, woken;
	u32 used, nwaiting, nheld;
	u32 waiting[MOST], held[MOST];
};

static struct client clients[MOST];
static u32 count, slow, fast;

static struct nfr_svc_share *share_of(struct client *client)
{
	return &client->svc.host->shares[NFR_SVC_REPLIES];
}

static void wake(struct nfr_svc_host *host)
{
	u32 i;

	for (i = 0; i < count; i++)
		if (clients[i].joined && clients[i].svc.host == host)
			clients[i].woken = true;
}

static void init(struct nfr_svc_host *host) { (void)host; }

static void charged(struct client *client, u32 pages)
{
	client->used += pages;
	client->held[client->nheld++] = pages;
}

/* Charge the first request that waits, as budget.c does. */
static bool serve(struct client *client)
{
	u32 pages = client->waiting[0];
	bool first = !client->used, fits;

	spin_lock_bh(&nfr_svc_shares_lock);
	fits = nfr_svc_share_charge(share_of(client), pages);
	if (fits) {
		client->nwaiting--;
		memmove(client->waiting, client->waiting + 1, client->nwaiting * sizeof(u32));
	}
	if (!client->nwaiting)
		nfr_svc_share_rest(share_of(client));
	spin_unlock_bh(&nfr_svc_shares_lock);
	/* nobody can take the floor */
	CHECK(fits || !first || client->svc.host->floor < pages);
	if (fits)
		charged(client, pages);
	slow++;
	return fits;
}

static void request(struct client *client, u32 pages)
{
	if (client->nwaiting + client->nheld == MOST)
		return;
	if (!client->nwaiting && nfr_svc_share_try(share_of(client), pages)) {
		charged(client, pages);
		fast++;
		return;
	}
	client->waiting[client->nwaiting++] = pages;
	if (client->nwaiting == 1)
		serve(client);
}

static void release(struct client *client, u32 number)
{
	u32 pages = client->held[number];

	client->held[number] = client->held[--client->nheld];
	client->used -= pages;
	nfr_svc_share_put(share_of(client), pages);
}

static void run_woken(void)
{
	bool more = true;
	u32 i;

	while (more) {
		more = false;
		for (i = 0; i < count; i++) {
			if (!clients[i].woken)
				continue;
			clients[i].woken = false;
			more = true;
			while (clients[i].nwaiting && serve(&clients[i]))
				;
		}
	}
}

/* Check that share.c woke each client whose request fits now. */
static void look_for_lost(void)
{
	u32 i;

	for (i = 0; i < count; i++)
		CHECK(!clients[i].nwaiting || clients[i].woken || !serve(&clients[i]));
}

static void look(void)
{
	struct nfr_svc_floors found;
	u32 i, sum = 0;

	nfr_svc_hosts_floors(&found);
	for (i = 0; i < count; i++) {
		sum += clients[i].used;
		if (clients[i].joined)
			/* one may have the shared floor when it gets its own */
			CHECK(clients[i].used <= MEMORY / NFR_SVC_SHARE + 2 * LARGEST);
	}
	CHECK(found.pages <= floors);
	CHECK(sum == nfr_svc_shares_in_use(NFR_SVC_REPLIES));
	/* and the shared floor */
	CHECK(sum <= MEMORY + found.pages + LARGEST);
	CHECK(!nfr_svc_shares_in_use(NFR_SVC_READS));
}

static void join(struct client *client)
{
	client->svc.first = &client->first;
	client->svc.remote.number = client - clients;
	client->svc.max_message = LARGEST * PAGE_SIZE;
	CHECK(!nfr_svc_host_join(&client->svc, init));
	client->joined = true;
}

static void leave(struct client *client)
{
	if (client->nwaiting || client->nheld)
		return;
	client->joined = client->woken = false;
	kfree(nfr_svc_host_leave(&client->svc));
}

static u32 pages_of(void)
{
	return rand() % 4 ? 1 + rand() % 64 : 1 + rand() % LARGEST;
}

int main(int argc, char **argv)
{
	u32 i, step, steps = atoi(argv[2]);

	if (argc != 5)
		return 2;
	srand(atoi(argv[1]));
	count = atoi(argv[3]);
	floors = atoi(argv[4]) << (20 - PAGE_SHIFT);
	nfr_svc_shares_wake_by(NFR_SVC_READS, wake);
	nfr_svc_shares_wake_by(NFR_SVC_REPLIES, wake);
	for (step = 0; step < steps; step++) {
		struct client *client = &clients[rand() % count];

		if (!client->joined)
			join(client);
		else if (rand() % 64 == 0)
			leave(client);
		else if (client->nheld && (rand() % 8 == 0) == (step / 1024 % 2 == 0))
			release(client, rand() % client->nheld);
		else
			request(client, pages_of());
		if (rand() % 4)
			run_woken();
		if (rand() % 16 == 0) {
			run_woken();
			look_for_lost();
		}
		look();
	}
	for (step = 0; step < MOST * MOST; step++) {
		for (i = 0; i < count; i++)
			if (clients[i].joined && clients[i].nheld)
				release(&clients[i], 0);
		run_woken();
		look();
	}
	for (i = 0; i < count; i++) {
		CHECK(!clients[i].nwaiting && !clients[i].used);
		if (clients[i].joined)
			leave(&clients[i]);
	}
	for (i = 0; i < NFR_SVC_PURPOSES; i++)
		CHECK(!nfr_svc_stocks[i].lent && !nfr_svc_stocks[i].urgent && !nfr_svc_stocks[i].guest);
	CHECK(!nfr_svc_floors_total);
	/* the rest is tested by the labs */
	(void)nfr_svc_share_is_wanted;
	(void)nfr_svc_shares_checking_function;
	printf("%u %u\n", fast, slow);
	return 0;
}
