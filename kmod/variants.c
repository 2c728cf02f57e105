// SPDX-License-Identifier: GPL-2.0-only
/*
 * Personalities: which protocol variant a client transport asks for, and which
 * variants the server accepts.
 *
 * A transport reads its personality when sunrpc creates it. The private data of
 * the connection carries it as a capability bit, and the server returns the bit
 * if its administrator allows the personality. Without that bit in the answer,
 * the connection is an ordinary one (read-write): then the peer is another
 * implementation, or does not allow it.
 *
 * An address names a server of one network namespace. An entry of personality_for
 * belongs to the namespace of the process that wrote it, applies to transports of that
 * namespace, and ends with it.
 */
#include <linux/inet.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/nsproxy.h>
#include <linux/sunrpc/addr.h>
#include <net/net_namespace.h>

#include "variants.h"

/* Servers that personality_for can name */
#define NFR_VARIANT_SERVERS	64

static const char * const nfr_variant_names[NFR_VARIANTS] = {
	[NFR_READ_WRITE]	= "read-write",
	[NFR_READ_READ]		= "read-read",
	[NFR_PADDED]		= "padded",
	[NFR_PRE_POSTED]	= "pre-posted",
	[NFR_CACHED]		= "cached",
	[NFR_OPTIMISTIC]	= "optimistic",
};

/* Returns a variant, or -EINVAL. A variant without a name is not available. */
static int nfr_variant_parse(const char *name)
{
	int variant;

	for (variant = 0; variant < NFR_VARIANTS; variant++)
		if (nfr_variant_names[variant] && sysfs_streq(name, nfr_variant_names[variant]))
			return variant;
	return -EINVAL;
}

/**
 * nfr_variant_name - get the name of a personality
 * @variant: personality
 *
 * Return: name, as the parameters accept it.
 */
const char *nfr_variant_name(enum nfr_variant variant)
{
	return nfr_variant_names[variant];
}

/* --- the personality of new transports --- */

static int nfr_variant_default = NFR_READ_WRITE;

static int nfr_variant_set(const char *text, const struct kernel_param *kp)
{
	int found = nfr_variant_parse(text);

	if (found < 0) {
		pr_err("nfsrdma: parameter personality: expected the name of a personality, got %.32s\n",
		       text);
		return found;
	}
	WRITE_ONCE(nfr_variant_default, found);
	return 0;
}

static int nfr_variant_get(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%s\n", nfr_variant_names[READ_ONCE(nfr_variant_default)]);
}

static const struct kernel_param_ops nfr_variant_ops = {
	.set = nfr_variant_set,
	.get = nfr_variant_get,
};
module_param_cb(personality, &nfr_variant_ops, NULL, 0644);
__MODULE_PARM_TYPE(personality, "charp");
MODULE_PARM_DESC(personality,
		 "Personality of new client transports: read-write, read-read, padded, pre-posted, cached or optimistic (default read-write)");

/* --- the personality of new transports to one server --- */

/*
 * A server with a personality of its own, in the namespace @net, which it holds no reference
 * to; unused if @addr has no family
 */
struct nfr_variant_server {
	const struct net *net;
	struct sockaddr_storage addr;
	enum nfr_variant variant;
};

static DEFINE_MUTEX(nfr_variant_mutex);		/* protects nfr_variant_servers */
static struct nfr_variant_server nfr_variant_servers[NFR_VARIANT_SERVERS];

static struct nfr_variant_server *nfr_variant_find(const struct net *net,
						   const struct sockaddr *addr)
{
	struct nfr_variant_server *at;

	for (at = nfr_variant_servers; at < nfr_variant_servers + NFR_VARIANT_SERVERS; at++)
		if (at->addr.ss_family == addr->sa_family && at->net == net &&
		    rpc_cmp_addr((struct sockaddr *)&at->addr, addr))
			return at;
	return NULL;
}

static struct nfr_variant_server *nfr_variant_find_unused(void)
{
	struct nfr_variant_server *at;

	for (at = nfr_variant_servers; at < nfr_variant_servers + NFR_VARIANT_SERVERS; at++)
		if (!at->addr.ss_family)
			return at;
	return NULL;
}

/* Set the personality of a server, or forget it if @variant is negative. */
static int nfr_variant_assign(const struct net *net, const struct sockaddr_storage *addr,
			      int variant)
{
	struct nfr_variant_server *at;
	int rc = 0;

	mutex_lock(&nfr_variant_mutex);
	at = nfr_variant_find(net, (const struct sockaddr *)addr);
	if (variant < 0) {
		if (at)
			at->addr.ss_family = AF_UNSPEC;
		goto out;
	}
	at = at ?: nfr_variant_find_unused();
	if (at) {
		at->net = net;
		at->addr = *addr;
		at->variant = variant;
	} else {
		rc = -ENOSPC;
	}
out:
	mutex_unlock(&nfr_variant_mutex);
	return rc;
}

static int nfr_variant_for_set(const char *text, const struct kernel_param *kp)
{
	struct sockaddr_storage addr = { };
	const char *name = strchr(text, ',');
	int variant = name ? nfr_variant_parse(name + 1) : -ENOENT;
	size_t length = name ? name - text : strcspn(text, "\n");
	struct net *net = current->nsproxy->net_ns;

	if (!length && !name)
		return 0;
	if (variant == -EINVAL ||
	    !rpc_pton(net, text, length, (struct sockaddr *)&addr, sizeof(addr))) {
		pr_err("nfsrdma: parameter personality_for: expected ADDRESS,NAME or ADDRESS, got %.80s\n",
		       text);
		return -EINVAL;
	}
	return nfr_variant_assign(net, &addr, variant);
}

static int nfr_variant_for_get(char *buffer, const struct kernel_param *kp)
{
	char text[INET6_ADDRSTRLEN + IPV6_SCOPE_ID_LEN];
	const struct nfr_variant_server *at;
	int length = 0;

	mutex_lock(&nfr_variant_mutex);
	for (at = nfr_variant_servers; at < nfr_variant_servers + NFR_VARIANT_SERVERS; at++) {
		if (!at->addr.ss_family || at->net != current->nsproxy->net_ns)
			continue;
		/* with its scope, so that it can be written back */
		rpc_ntop((const struct sockaddr *)&at->addr, text, sizeof(text));
		length += sysfs_emit_at(buffer, length, "%s%s,%s", length ? " " : "", text,
					nfr_variant_names[at->variant]);
	}
	mutex_unlock(&nfr_variant_mutex);
	return length + sysfs_emit_at(buffer, length, "\n");
}

static const struct kernel_param_ops nfr_variant_for_ops = {
	.set = nfr_variant_for_set,
	.get = nfr_variant_for_get,
};
module_param_cb(personality_for, &nfr_variant_for_ops, NULL, 0644);
__MODULE_PARM_TYPE(personality_for, "charp");
MODULE_PARM_DESC(personality_for,
		 "ADDRESS,NAME: personality of new client transports to that server, in the network namespace of the writer; ADDRESS: forget it");

/**
 * nfr_variant_for - choose the personality of a new client transport
 * @net: network namespace of the transport
 * @server: address of the server; the port does not matter
 *
 * Return: personality to ask the server for.
 */
enum nfr_variant nfr_variant_for(const struct net *net, const struct sockaddr *server)
{
	enum nfr_variant variant = READ_ONCE(nfr_variant_default);
	const struct nfr_variant_server *at;

	mutex_lock(&nfr_variant_mutex);
	at = nfr_variant_find(net, server);
	if (at)
		variant = at->variant;
	mutex_unlock(&nfr_variant_mutex);
	return variant;
}

static void __net_exit nfr_variant_exit_net(struct net *net)
{
	struct nfr_variant_server *at;

	mutex_lock(&nfr_variant_mutex);
	for (at = nfr_variant_servers; at < nfr_variant_servers + NFR_VARIANT_SERVERS; at++)
		if (at->net == net)
			at->addr.ss_family = AF_UNSPEC;
	mutex_unlock(&nfr_variant_mutex);
}

static struct pernet_operations nfr_variant_net_ops = {
	.exit = nfr_variant_exit_net,
};

/**
 * nfr_variant_start - begin to forget the servers of namespaces that end
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_variant_start(void)
{
	return register_pernet_subsys(&nfr_variant_net_ops);
}

/**
 * nfr_variant_stop - undo nfr_variant_start()
 */
void nfr_variant_stop(void)
{
	unregister_pernet_subsys(&nfr_variant_net_ops);
}

/* --- what the server accepts --- */

static unsigned long nfr_variants_accepted;

static int nfr_variants_set(const char *text, const struct kernel_param *kp)
{
	char *copy = kstrdup(text, GFP_KERNEL), *rest = copy, *name;
	unsigned long accepted = 0;
	int found = 0;

	if (!copy)
		return -ENOMEM;
	while (found >= 0 && (name = strsep(&rest, ",\n"))) {
		if (!*name)
			continue;
		found = nfr_variant_parse(name);
		if (found >= 0)
			accepted |= BIT(found);
	}
	kfree(copy);
	if (found < 0) {
		pr_err("nfsrdma: parameter server_personalities: expected names separated by commas, got %.64s\n",
		       text);
		return found;
	}
	WRITE_ONCE(nfr_variants_accepted, accepted);
	return 0;
}

static int nfr_variants_get(char *buffer, const struct kernel_param *kp)
{
	unsigned long accepted = READ_ONCE(nfr_variants_accepted);
	int variant, length = 0;

	for_each_set_bit(variant, &accepted, NFR_VARIANTS)
		length += sysfs_emit_at(buffer, length, "%s%s", length ? "," : "",
					nfr_variant_names[variant]);
	return length + sysfs_emit_at(buffer, length, "\n");
}

static const struct kernel_param_ops nfr_variants_ops = {
	.set = nfr_variants_set,
	.get = nfr_variants_get,
};
module_param_cb(server_personalities, &nfr_variants_ops, NULL, 0644);
__MODULE_PARM_TYPE(server_personalities, "charp");
MODULE_PARM_DESC(server_personalities,
		 "Personalities that the server accepts beside read-write, separated by commas: read-read, padded, pre-posted, cached, optimistic");

/**
 * nfr_variant_agree - choose the personality of a connection of the server
 * @capabilities: capability bits that the client sent
 *
 * Return: the personality that the client asks for, if the server accepts it, or
 * NFR_READ_WRITE.
 */
enum nfr_variant nfr_variant_agree(u32 capabilities)
{
	unsigned long both = READ_ONCE(nfr_variants_accepted) & ((unsigned long)capabilities << 1);

	return both ? __ffs(both) : NFR_READ_WRITE;
}
