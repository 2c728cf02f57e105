#include "server/server.h"
