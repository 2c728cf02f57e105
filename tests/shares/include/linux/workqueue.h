/* SPDX-License-Identifier: Apache-2.0 */
#include "server/server.h"
