/* SPDX-License-Identifier: Apache-2.0 */
#include "server/server.h"
static inline void nfr_work_queue(struct delayed_work *work, unsigned long delay)
{
	(void)work;
	(void)delay;
}
static inline void cancel_delayed_work_sync(struct delayed_work *work) { (void)work; }
