// SPDX-License-Identifier: GPL-2.0-only
/*
 * Events of RDMA devices, and the connections of each device.
 *
 * A device whose firmware stops reports IB_EVENT_DEVICE_FATAL. The RDMA core ends connections only
 * when the driver unregisters the device, seconds later or never: here they break at once, and do
 * not wait for completions that may never come. Their memory returns with proof, as always.
 *
 * A port that is down may come up again, before a peer notices: the queue pairs retry what they
 * sent, and break if that takes too long. So these events appear in the kernel's log only.
 */
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#include "connection/connection.h"
#include "connection/device.h"
#include "connection/state.h"

/* Disconnect reason */
static const char nfr_conn_device_failed[] = "the RDMA device reported a fatal error";

/**
 * struct nfr_device - RDMA device
 * @list: link in the list of devices
 * @device: device
 * @handler: handler of its events
 */
struct nfr_device {
	struct list_head list;
	struct ib_device *device;
	struct ib_event_handler handler;
};

static DEFINE_MUTEX(nfr_conn_devices_mutex);
static LIST_HEAD(nfr_conn_devices);

/* Connections with queues */
static DEFINE_SPINLOCK(nfr_conn_devices_lock);
static LIST_HEAD(nfr_conn_devices_used);

/**
 * nfr_conn_device_use - let a connection break when its device fails
 * @conn: connection that gets queues
 */
void nfr_conn_device_use(struct nfr_conn *conn)
{
	spin_lock(&nfr_conn_devices_lock);
	list_add_tail(&conn->of_device, &nfr_conn_devices_used);
	spin_unlock(&nfr_conn_devices_lock);
}

/**
 * nfr_conn_device_unuse - undo nfr_conn_device_use()
 * @conn: connection; it may never have been used
 */
void nfr_conn_device_unuse(struct nfr_conn *conn)
{
	spin_lock(&nfr_conn_devices_lock);
	list_del_init(&conn->of_device);
	spin_unlock(&nfr_conn_devices_lock);
}

static void nfr_conn_device_fatal(const struct ib_device *device)
{
	struct nfr_conn *conn;
	u32 count = 0;

	spin_lock(&nfr_conn_devices_lock);
	list_for_each_entry(conn, &nfr_conn_devices_used, of_device) {
		/* a device may report more than once */
		if (conn->device != device || conn->device_failed)
			continue;
		WRITE_ONCE(conn->device_failed, true);
		WRITE_ONCE(conn->device_ends, true);
		nfr_conn_break_later(conn, nfr_conn_device_failed);
		count++;
	}
	spin_unlock(&nfr_conn_devices_lock);
	if (count)
		pr_err("nfsrdma: device %s reports a fatal error: %u connections end\n",
		       device->name, count);
}

static void nfr_conn_device_port(const struct ib_device *device, u32 port, const char *what)
{
	struct nfr_conn *conn;
	u32 count = 0;

	spin_lock(&nfr_conn_devices_lock);
	list_for_each_entry(conn, &nfr_conn_devices_used, of_device)
		count += conn->device == device && conn->id->port_num == port;
	spin_unlock(&nfr_conn_devices_lock);
	if (count)
		pr_warn_ratelimited("nfsrdma: device %s: port %u is %s; %u connections use it\n",
				    device->name, port, what, count);
}

/* Context: worker of the RDMA core. */
static void nfr_conn_device_event(struct ib_event_handler *handler, struct ib_event *event)
{
	switch (event->event) {
	case IB_EVENT_DEVICE_FATAL:
		nfr_conn_device_fatal(event->device);
		break;
	case IB_EVENT_PORT_ERR:
		nfr_conn_device_port(event->device, event->element.port_num, "down");
		break;
	case IB_EVENT_PORT_ACTIVE:
		nfr_conn_device_port(event->device, event->element.port_num, "up");
		break;
	default:
		/* rdma_cm reports a change of an address that a connection uses */
		break;
	}
}

static int nfr_conn_device_add(struct ib_device *device);
static void nfr_conn_device_remove(struct ib_device *device, void *data);

static struct ib_client nfr_conn_device_client = {
	.name	= "nfsrdma",
	.add	= nfr_conn_device_add,
	.remove	= nfr_conn_device_remove,
};

static int nfr_conn_device_add(struct ib_device *device)
{
	struct nfr_device *new = kzalloc(sizeof(*new), GFP_KERNEL);

	if (!new)
		return -ENOMEM;
	new->device = device;
	INIT_IB_EVENT_HANDLER(&new->handler, device, nfr_conn_device_event);
	ib_register_event_handler(&new->handler);
	ib_set_client_data(device, &nfr_conn_device_client, new);
	mutex_lock(&nfr_conn_devices_mutex);
	list_add_tail(&new->list, &nfr_conn_devices);
	mutex_unlock(&nfr_conn_devices_mutex);
	return 0;
}

/* rdma_cm reports the removal to each connection. */
static void nfr_conn_device_remove(struct ib_device *device, void *data)
{
	struct nfr_device *old = data;

	mutex_lock(&nfr_conn_devices_mutex);
	list_del(&old->list);
	mutex_unlock(&nfr_conn_devices_mutex);
	ib_unregister_event_handler(&old->handler);
	kfree(old);
}

/**
 * nfr_conn_devices_show - print what limits each device
 * @seq: file
 * @show: prints it for one device
 */
void nfr_conn_devices_show(struct seq_file *seq,
			   void (*show)(struct seq_file *seq, struct ib_device *device))
{
	const struct nfr_device *each;

	mutex_lock(&nfr_conn_devices_mutex);
	list_for_each_entry(each, &nfr_conn_devices, list) {
		seq_printf(seq, "device %s\n", dev_name(&each->device->dev));
		show(seq, each->device);
	}
	mutex_unlock(&nfr_conn_devices_mutex);
}

/**
 * nfr_conn_devices_start - listen to the events of all devices
 *
 * Return: 0 or a negative errno.
 */
int nfr_conn_devices_start(void)
{
	return ib_register_client(&nfr_conn_device_client);
}

/**
 * nfr_conn_devices_stop - undo nfr_conn_devices_start()
 */
void nfr_conn_devices_stop(void)
{
	ib_unregister_client(&nfr_conn_device_client);
}
