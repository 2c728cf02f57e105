/* SPDX-License-Identifier: GPL-2.0-only */
/* Empty: bcc includes this file for filters of packets */
