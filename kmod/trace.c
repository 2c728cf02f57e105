// SPDX-License-Identifier: GPL-2.0-only
/*
 * The trace events of the module, compiled. Their headers are in observe/, and name the
 * structures of other rooms; this file includes them, and calls no room.
 */
#include "client/client.h"
#include "connection/connection.h"
#include "memory/memory.h"
#include "server/server.h"

#define CREATE_TRACE_POINTS
#include "observe/trace.h"
#include "observe/trace_server.h"
