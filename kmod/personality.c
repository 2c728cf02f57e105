// SPDX-License-Identifier: GPL-2.0-only
/*
 * Personalities: which protocol variant a client transport asks for, and which
 * personalities the server accepts.
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

#include "personality.h"

/* Servers that personality_for can name */
#define NFR_PERSONALITY_SERVERS	64

#define NFR_PERSONALITY_NAME(_number, _constant, _symbol, _name)	[_number] = _name,
#define NFR_PERSONALITY_WORD(_number, _constant, _symbol, _name)	" " _name

static const char * const nfr_personality_names[NFR_PERSONALITIES] = {
	NFR_PERSONALITY_LIST(NFR_PERSONALITY_NAME)
};

/* Returns a personality, or -EINVAL. */
static int nfr_personality_parse(const char *name)
{
	return sysfs_match_string(nfr_personality_names, name);
}

/**
 * nfr_personality_name - get the name of a personality
 * @personality: personality
 *
 * Return: name, as the parameters accept it.
 */
const char *nfr_personality_name(enum nfr_personality personality)
{
	return nfr_personality_names[personality];
}

/* --- the personality of new transports --- */

static int nfr_personality_default = NFR_READ_WRITE;

static int nfr_personality_set(const char *text, const struct kernel_param *kp)
{
	int found = nfr_personality_parse(text);

	if (found < 0) {
		pr_err("nfsrdma: parameter personality: expected the name of a personality, got %.32s\n",
		       text);
		return found;
	}
	WRITE_ONCE(nfr_personality_default, found);
	return 0;
}

static int nfr_personality_get(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%s\n", nfr_personality_names[READ_ONCE(nfr_personality_default)]);
}

static const struct kernel_param_ops nfr_personality_ops = {
	.set = nfr_personality_set,
	.get = nfr_personality_get,
};
module_param_cb(personality, &nfr_personality_ops, NULL, 0644);
__MODULE_PARM_TYPE(personality, "charp");
MODULE_PARM_DESC(personality,
		 "Personality of new client transports:"
		 NFR_PERSONALITY_LIST(NFR_PERSONALITY_WORD) " (default read-write)");

/* --- the personality of new transports to one server --- */

/*
 * A server with a personality of its own, in the namespace @net, which it holds no reference
 * to; unused if @addr has no family
 */
struct nfr_personality_server {
	const struct net *net;
	struct sockaddr_storage addr;
	enum nfr_personality personality;
};

static DEFINE_MUTEX(nfr_personality_mutex);		/* protects nfr_personality_servers */
static struct nfr_personality_server nfr_personality_servers[NFR_PERSONALITY_SERVERS];

#define nfr_personality_for_each_server(_at)					\
	for (_at = nfr_personality_servers;					\
	     _at < nfr_personality_servers + NFR_PERSONALITY_SERVERS; _at++)

static struct nfr_personality_server *nfr_personality_find(const struct net *net,
						   const struct sockaddr *addr)
{
	struct nfr_personality_server *at;

	nfr_personality_for_each_server(at)
		if (at->addr.ss_family == addr->sa_family && at->net == net &&
		    rpc_cmp_addr((struct sockaddr *)&at->addr, addr))
			return at;
	return NULL;
}

static struct nfr_personality_server *nfr_personality_find_unused(void)
{
	struct nfr_personality_server *at;

	nfr_personality_for_each_server(at)
		if (!at->addr.ss_family)
			return at;
	return NULL;
}

/* Set the personality of a server, or forget it if @personality is negative. */
static int nfr_personality_assign(const struct net *net, const struct sockaddr_storage *addr,
			      int personality)
{
	struct nfr_personality_server *at;
	int rc = 0;

	mutex_lock(&nfr_personality_mutex);
	at = nfr_personality_find(net, (const struct sockaddr *)addr);
	if (personality < 0) {
		if (at)
			at->addr.ss_family = AF_UNSPEC;
		goto out;
	}
	at = at ?: nfr_personality_find_unused();
	if (at) {
		at->net = net;
		at->addr = *addr;
		at->personality = personality;
	} else {
		rc = -ENOSPC;
	}
out:
	mutex_unlock(&nfr_personality_mutex);
	return rc;
}

static int nfr_personality_for_set(const char *text, const struct kernel_param *kp)
{
	struct sockaddr_storage addr = { };
	const char *name = strchr(text, ',');
	int personality = name ? nfr_personality_parse(name + 1) : -ENOENT;
	size_t length = name ? name - text : strcspn(text, "\n");
	struct net *net = current->nsproxy->net_ns;

	if (!length && !name)
		return 0;
	if (personality == -EINVAL ||
	    !rpc_pton(net, text, length, (struct sockaddr *)&addr, sizeof(addr))) {
		pr_err("nfsrdma: parameter personality_for: expected ADDRESS,NAME or ADDRESS, got %.80s\n",
		       text);
		return -EINVAL;
	}
	return nfr_personality_assign(net, &addr, personality);
}

static int nfr_personality_for_get(char *buffer, const struct kernel_param *kp)
{
	char text[INET6_ADDRSTRLEN + IPV6_SCOPE_ID_LEN];
	const struct nfr_personality_server *at;
	int length = 0;

	mutex_lock(&nfr_personality_mutex);
	nfr_personality_for_each_server(at) {
		if (!at->addr.ss_family || at->net != current->nsproxy->net_ns)
			continue;
		/* with its scope, so that it can be written back */
		rpc_ntop((const struct sockaddr *)&at->addr, text, sizeof(text));
		length += sysfs_emit_at(buffer, length, "%s%s,%s", length ? " " : "", text,
					nfr_personality_names[at->personality]);
	}
	mutex_unlock(&nfr_personality_mutex);
	return length + sysfs_emit_at(buffer, length, "\n");
}

static const struct kernel_param_ops nfr_personality_for_ops = {
	.set = nfr_personality_for_set,
	.get = nfr_personality_for_get,
};
module_param_cb(personality_for, &nfr_personality_for_ops, NULL, 0644);
__MODULE_PARM_TYPE(personality_for, "charp");
MODULE_PARM_DESC(personality_for,
		 "ADDRESS,NAME: personality of new client transports to that server, in the network namespace of the writer; ADDRESS: forget it");

/**
 * nfr_personality_for - choose the personality of a new client transport
 * @net: network namespace of the transport
 * @server: address of the server; the port does not matter
 *
 * Return: personality to ask the server for.
 */
enum nfr_personality nfr_personality_for(const struct net *net, const struct sockaddr *server)
{
	enum nfr_personality personality = READ_ONCE(nfr_personality_default);
	const struct nfr_personality_server *at;

	mutex_lock(&nfr_personality_mutex);
	at = nfr_personality_find(net, server);
	if (at)
		personality = at->personality;
	mutex_unlock(&nfr_personality_mutex);
	return personality;
}

static void __net_exit nfr_personality_exit_net(struct net *net)
{
	struct nfr_personality_server *at;

	mutex_lock(&nfr_personality_mutex);
	nfr_personality_for_each_server(at)
		if (at->net == net)
			at->addr.ss_family = AF_UNSPEC;
	mutex_unlock(&nfr_personality_mutex);
}

static struct pernet_operations nfr_personality_net_ops = {
	.exit = nfr_personality_exit_net,
};

/**
 * nfr_personality_start - begin to forget the servers of namespaces that end
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_personality_start(void)
{
	return register_pernet_subsys(&nfr_personality_net_ops);
}

/**
 * nfr_personality_stop - undo nfr_personality_start()
 */
void nfr_personality_stop(void)
{
	unregister_pernet_subsys(&nfr_personality_net_ops);
}

/* --- what the server accepts --- */

static unsigned long nfr_personalities_accepted;

static int nfr_personalities_set(const char *text, const struct kernel_param *kp)
{
	char *copy = kstrdup(text, GFP_KERNEL), *rest = copy, *name;
	unsigned long accepted = 0;
	int found = 0;

	if (!copy)
		return -ENOMEM;
	while (found >= 0 && (name = strsep(&rest, ",\n"))) {
		if (!*name)
			continue;
		found = nfr_personality_parse(name);
		if (found >= 0)
			accepted |= BIT(found);
	}
	kfree(copy);
	if (found < 0) {
		pr_err("nfsrdma: parameter server_personalities: expected names separated by commas, got %.64s\n",
		       text);
		return found;
	}
	WRITE_ONCE(nfr_personalities_accepted, accepted);
	return 0;
}

static int nfr_personalities_get(char *buffer, const struct kernel_param *kp)
{
	unsigned long accepted = READ_ONCE(nfr_personalities_accepted);
	int personality, length = 0;

	for_each_set_bit(personality, &accepted, NFR_PERSONALITIES)
		length += sysfs_emit_at(buffer, length, "%s%s", length ? "," : "",
					nfr_personality_names[personality]);
	return length + sysfs_emit_at(buffer, length, "\n");
}

static const struct kernel_param_ops nfr_personalities_ops = {
	.set = nfr_personalities_set,
	.get = nfr_personalities_get,
};
module_param_cb(server_personalities, &nfr_personalities_ops, NULL, 0644);
__MODULE_PARM_TYPE(server_personalities, "charp");
MODULE_PARM_DESC(server_personalities,
		 "Personalities that the server accepts beside read-write, separated by commas:"
		 NFR_PERSONALITY_LIST(NFR_PERSONALITY_WORD));

/**
 * nfr_personality_agree - choose the personality of a connection of the server
 * @capabilities: capability bits that the client sent
 *
 * Return: the personality that the client asks for, if the server accepts it, or
 * NFR_READ_WRITE.
 */
enum nfr_personality nfr_personality_agree(u32 capabilities)
{
	unsigned long asked = (unsigned long)capabilities << 1;
	unsigned long both = READ_ONCE(nfr_personalities_accepted) & asked;

	return both ? __ffs(both) : NFR_READ_WRITE;
}
