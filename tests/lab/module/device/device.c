// SPDX-License-Identifier: GPL-2.0-only
/*
 * An RDMA device that can do less than it could, for as long as this module is
 * loaded: soft-RoCE has no parameters for that. Writing an event's number to
 * the parameter "event" has the queue pair that was made last report it.
 */
#include <linux/module.h>
#include <linux/wait.h>
#include <rdma/ib_verbs.h>

static char *name = "rxe0";
module_param(name, charp, 0444);

static int max_qp_wr;
module_param(max_qp_wr, int, 0444);
MODULE_PARM_DESC(max_qp_wr, "Work requests of a queue, as the device has it; 0 for what it had");

static bool no_frwr;
module_param(no_frwr, bool, 0444);
MODULE_PARM_DESC(no_frwr, "Have no memory management extensions");

static uint max_sends;
module_param(max_sends, uint, 0444);
MODULE_PARM_DESC(max_sends, "Refuse queue pairs with more, which the device does not say; 0 for none");

static bool hold_mrs;
MODULE_PARM_DESC(hold_mrs, "Allocate no memory region: fail as soon as this is false again");
static DECLARE_WAIT_QUEUE_HEAD(released);

static int holding;
module_param(holding, int, 0444);
MODULE_PARM_DESC(holding, "Allocations that wait for hold_mrs");

static uint fail_lists;
module_param(fail_lists, uint, 0644);
MODULE_PARM_DESC(fail_lists, "Number of receives with a scatter list to refuse");

static struct ib_device *device;
static struct ib_device_attr before;
static struct ib_qp *last;
static int (*create_qp)(struct ib_qp *qp, struct ib_qp_init_attr *attr, struct ib_udata *udata);

static int refuse_large(struct ib_qp *qp, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	if (max_sends && attr->cap.max_send_wr > max_sends)
		return -ENOMEM;
	last = qp;
	return create_qp(qp, attr, udata);
}

static struct ib_mr *(*alloc_mr)(struct ib_pd *pd, enum ib_mr_type type, u32 most);

static struct ib_mr *hold_or_alloc(struct ib_pd *pd, enum ib_mr_type type, u32 most)
{
	if (!READ_ONCE(hold_mrs))
		return alloc_mr(pd, type, most);
	holding++;
	wait_event(released, !READ_ONCE(hold_mrs));
	holding--;
	return ERR_PTR(-ENOMEM);
}

static int hold_set(const char *text, const struct kernel_param *kp)
{
	int rc = param_set_bool(text, kp);

	wake_up_all(&released);
	return rc;
}

static const struct kernel_param_ops hold_ops = { .set = hold_set, .get = param_get_bool };
module_param_cb(hold_mrs, &hold_ops, &hold_mrs, 0644);

static int (*post_recv)(struct ib_qp *qp, const struct ib_recv_wr *wr,
			const struct ib_recv_wr **bad);

static int refuse_lists(struct ib_qp *qp, const struct ib_recv_wr *wr,
			const struct ib_recv_wr **bad)
{
	if (wr->num_sge < 2 || !fail_lists)
		return post_recv(qp, wr, bad);
	fail_lists--;
	*bad = wr;
	return -ENOMEM;
}

static int event_set(const char *text, const struct kernel_param *kp)
{
	struct ib_event event = { .device = device, .element.qp = last };
	int number, rc = kstrtoint(text, 0, &number);

	if (rc)
		return rc;
	if (!last)
		return -ENXIO;
	event.event = number;
	last->event_handler(&event, last->qp_context);
	return 0;
}

static const struct kernel_param_ops event_ops = { .set = event_set };
module_param_cb(event, &event_ops, NULL, 0200);

static int __init small_init(void)
{
	device = ib_device_get_by_name(name, RDMA_DRIVER_UNKNOWN);
	if (!device)
		return -ENODEV;
	before = device->attrs;
	create_qp = device->ops.create_qp;
	device->ops.create_qp = refuse_large;
	alloc_mr = device->ops.alloc_mr;
	device->ops.alloc_mr = hold_or_alloc;
	post_recv = device->ops.post_recv;
	device->ops.post_recv = refuse_lists;
	if (max_qp_wr)
		device->attrs.max_qp_wr = max_qp_wr;
	if (no_frwr)
		device->attrs.device_cap_flags &= ~IB_DEVICE_MEM_MGT_EXTENSIONS;
	return 0;
}

static void __exit small_exit(void)
{
	device->ops.create_qp = create_qp;
	device->ops.alloc_mr = alloc_mr;
	device->ops.post_recv = post_recv;
	device->attrs = before;
	ib_device_put(device);
}

module_init(small_init);
module_exit(small_exit);
MODULE_DESCRIPTION("an RDMA device that can do less");
MODULE_LICENSE("GPL");
