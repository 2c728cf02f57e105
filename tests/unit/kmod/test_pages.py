# SPDX-License-Identifier: Apache-2.0
"""Client and server of our module with pages of different sizes: they agree on what both can do.

The functions that state sizes in the private data, and read them there, compiled for each size.
"""

import ctypes
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import reference
from wire.native import COMPILER

from nfsrdma_tools.command import run

KMOD = Path(__file__).parents[3] / "kmod"
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

SHIFTS = (12, 14, 16)
PAIRS = list(product(SHIFTS, SHIFTS))
UNIT, UNITS_MAX, MIB = 4096, 255, 1 << 20
# elements of a message: those of a device, those that lanes use, and the one of the head
DEVICES, MOST, HEAD = (1, 2, 3, 4, 5, 8, 16, 17, 31, 32, 33, 64), 32, 1
DEPTHS = (16, 17, 100, 255, 256, 257, 512)
PADDED = range(UNIT, 16 * UNIT + 1, UNIT)
INLINE = (1024, 4096, 8192, 16384, 65536)

# what the functions use of Linux and of the module's structures
BEFORE = r"""
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;
#define PAGE_SIZE		(1u << PAGE_SHIFT)
#define PAGE_ALIGN(n)		(((n) + PAGE_SIZE - 1) & ~(PAGE_SIZE - 1))
#define U8_MAX			255
#define BIT(n)			(1u << (n))
#define GENMASK(h, l)		((~0u << (l)) & (~0u >> (31 - (h))))
#define FIELD_PREP(mask, n)	(((u32)(n) << __builtin_ctz(mask)) & (mask))
#define FIELD_GET(mask, n)	(((n) & (mask)) >> __builtin_ctz(mask))
#define min(a, b)		((a) < (b) ? (a) : (b))
#define max(a, b)		((a) > (b) ? (a) : (b))
#define min_t(type, a, b)	min((type)(a), (type)(b))
#define ilog2(n)		(31 - __builtin_clz(n))
#define OTHERS			1
#define NFR_LANE_SENDS		OTHERS
#define NFR_SVC_LANE_SENDS	OTHERS
#define NFR_SVC_NOTICE_RECVS	OTHERS
#define NFR_SVC_NOTICE_SENDS	OTHERS
#define NFR_SVC_REVOKED_MAX	OTHERS
#define NFR_CONN_SMALL		"small"
#define nfr_conn_unfit(conn, why)	(-EOPNOTSUPP)
#define nfr_conn_fit_queue(conn, chain)	0
#define nfr_svc_notice_map(branch)	0
#define nfr_params_server_pages()	(server_memory / PAGE_SIZE)
#define atomic_add_return(n, counter)	(*(counter) += (n))
#define atomic_sub(n, counter)	(*(counter) -= (n))

static u32 server_memory, nfr_svc_padded_in_use;
struct rdma_conn_param;
struct ib_device_attr { u32 max_send_sge, max_recv_sge; int max_qp_rd_atom; };
struct ib_device { struct ib_device_attr attrs; };
struct nfr_private { bool extended; u32 capabilities; u64 token; };
struct nfr_profile {
	u32 receives, sends, send_sges, recv_sges, recv_data, offers;
	int reads_served, reads_issued;
	struct nfr_private private;
};
struct nfr_conn {
	struct ib_device *device;
	struct nfr_private peer;
	struct nfr_profile profile;
	struct { u32 padded_max, inline_recv, credits; } wanted;
};
struct nfr_branch { struct nfr_conn conn; u32 units; };
struct nfr_link { struct nfr_conn conn; u32 padded; };
struct pool { u32 depth; };
struct notices { u32 order; };
struct personality { u32 number; };
struct nfr_svc {
	const struct personality *personality;
	struct nfr_conn *conn;
	struct pool *pool;
	struct notices *notices;
	struct { u32 most, pages; } padding;
	u32 lane_units, grant;
};
#define nfr_svc_lane_units(lane)	(&(lane)->lane_units)
#define nfr_svc_notices(branch)		((branch)->notices)
#define nfr_svc_padding(svc)		(&(svc)->padding)
#define nfr_client_padded_most(link)	(&(link)->padded)
"""
PARTS = {
    "connection/connection.h": (
        *(r"#define NFR_CALLBACK_CREDITS\t.*?$", r"#define NFR_BATCH\t.*?$"),
        r"#define NFR_QUEUE_SPARE\t.*?$",
    ),
    "personality.h": (
        *(r"#define NFR_PERSONALITY_LIST.*?[^\\]$", r"#define NFR_PERSONALITY_NUMBER.*?$"),
        *(r"enum nfr_personality \{.*?^\};$", r"static inline u32 nfr_personality_bit\(.*?^\}$"),
        *(r"#define NFR_LANE\t.*?$", r"#define NFR_UNIT_SHIFT.*?$"),
        r"#define NFR_UNITS_PER_PAGE.*?$",
    ),
    "personality/preposted.h": (
        *(r"#define NFR_LANE_UNITS\t.*?$", r"#define NFR_LANE_UNITS_MAX\t.*?$"),
        *(r"#define NFR_LANE_MESSAGES\t.*?$", r"#define NFR_LANE_SGES\t.*?$"),
        r"#define NFR_LANE_SPARE_SGES\t.*?$",
        *(rf"static inline u32 nfr_lane_{name}\(.*?^\}}$" for name in ("sges", "units")),
    ),
    "personality/optimistic.h": (
        *(r"#define NFR_EXTENT_ORDER\t.*?$", r"#define NFR_EXTENT_ORDER_MAX\t.*?$"),
    ),
    "personality/padded.h": (
        *(r"#define NFR_PADDED_ALIGN\t.*?$", r"#define NFR_PADDED_UNITS\t.*?$"),
        r"static inline u32 nfr_padded_capability\(.*?^\}$",
        r"static inline u32 nfr_padded_limit\(.*?^\}$",
    ),
    "client/personality/preposted.c": (
        r"static int nfr_client_lane_fit\(.*?^\}$",
        r"static int nfr_client_lane_agree\(.*?^\}$",
    ),
    "server/personality/preposted.c": (r"static int nfr_svc_lane_fit\(.*?^\}$",),
    "client/personality/optimistic.c": (r"static int nfr_client_reader_agree\(.*?^\}$",),
    "server/optimistic/notice.c": (r"int nfr_svc_notice_fit\(.*?^\}$",),
    "connection/queues.c": (r"void nfr_conn_recv_align\(.*?^\}$",),
    "client/personality/padded.c": (r"static int nfr_client_padded_agree\(.*?^\}$",),
    "server/personality/padded.c": (
        r"#define NFR_SVC_PADDED_SPARE\t.*?$",
        r"static int nfr_svc_padded_fit\(.*?^\}$",
        r"static int nfr_svc_padded_agree\(.*?^\}$",
    ),
}
# each returns what the functions decided, or 0 if they refused
AFTER = r"""
static const struct personality lanes = { NFR_PRE_POSTED };
static const struct personality readers = { NFR_OPTIMISTIC };

u32 lane_offer(u32 sges, u32 *units)
{
	struct ib_device device = { .attrs = { .max_recv_sge = sges } };
	struct nfr_branch branch = { .conn = { .device = &device } };

	if (nfr_client_lane_fit(&branch))
		return 0;
	*units = branch.units;
	return branch.conn.profile.private.capabilities;
}

u32 lane_accept(u32 sges, u32 offer, u32 *units)
{
	struct ib_device device = { .attrs = { .max_send_sge = sges } };
	struct nfr_conn conn = { .device = &device, .peer = { .capabilities = offer } };
	struct nfr_svc lane = { .conn = &conn, .personality = &lanes };

	if (nfr_svc_lane_fit(&lane))
		return 0;
	*units = lane.lane_units;
	return conn.profile.private.capabilities;
}

u32 lane_agree(u32 units, u32 answer)
{
	struct nfr_branch branch = { .conn = { .peer = { .capabilities = answer } }, .units = units };

	return nfr_client_lane_agree(&branch) ? 0 : branch.units;
}

u32 extent_offer(u32 depth, u32 *order)
{
	struct ib_device device = { };
	struct nfr_conn conn = { .device = &device };
	struct pool pool = { .depth = depth };
	struct notices notices = { };
	struct nfr_svc branch = {
		.conn = &conn, .pool = &pool, .notices = &notices, .personality = &readers,
	};

	nfr_svc_notice_fit(&branch);
	*order = notices.order;
	return conn.profile.private.capabilities;
}

u32 extent_agree(u32 answer)
{
	struct nfr_branch branch = { .conn = { .peer = { .capabilities = answer } } };

	return nfr_client_reader_agree(&branch) ? 0 : branch.units;
}

u32 padded_room(u32 padded_max, u32 inline_recv, u32 *room)
{
	struct nfr_conn conn = { .wanted = { padded_max, inline_recv } };

	nfr_conn_recv_align(&conn);
	*room = conn.profile.recv_data;
	return nfr_padded_capability(conn.profile.recv_data);
}

u32 padded_charge(u32 padded_max, u32 inline_recv, u32 credits, u32 memory)
{
	struct nfr_conn conn = { .wanted = { padded_max, inline_recv, credits } };
	struct nfr_svc svc = { .conn = &conn };

	server_memory = memory;
	nfr_svc_padded_in_use = 0;
	return nfr_svc_padded_agree(&svc, NULL) ? 0 : svc.padding.pages;
}

u32 padded_call(u32 padded_max, u32 capabilities)
{
	struct nfr_link link = { .conn = { .wanted = { padded_max } } };

	link.conn.peer.capabilities = capabilities;
	nfr_client_padded_agree(&link);
	return link.padded;
}

u32 padded_reply(u32 padded_max, u32 capabilities, u32 sges)
{
	struct nfr_conn conn = { .wanted = { padded_max }, .peer = { .capabilities = capabilities } };
	struct nfr_svc svc = { .conn = &conn };

	conn.profile.send_sges = sges;
	nfr_svc_padded_fit(&svc);
	return svc.padding.most;
}
"""


class Module:
    """The functions of a kernel with such pages."""

    def __init__(self, path: Path, shift: int) -> None:
        self.page = 1 << shift
        self._lib = ctypes.CDLL(str(path))

    def call(self, name: str, *numbers: int) -> int:
        function = getattr(self._lib, name)
        function.restype = ctypes.c_uint32
        return int(function(*map(ctypes.c_uint32, numbers)))

    def state(self, name: str, *numbers: int) -> tuple[int, int]:
        """What the private data states, and what the kernel itself goes by."""
        own = ctypes.c_uint32()
        function = getattr(self._lib, name)
        function.restype = ctypes.c_uint32
        stated = function(*map(ctypes.c_uint32, numbers), ctypes.byref(own))
        return int(stated), own.value

    def pages(self, size: int) -> int:
        """Pages that ``size`` bytes of memory take that begin with the last byte of a page."""
        return -(-(self.page - 1 + size) // self.page)


def found(text: str, pattern: str) -> str:
    match = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    assert match, pattern
    return match[0]


@pytest.fixture(scope="module")
def of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Module]:
    assert COMPILER
    folder = tmp_path_factory.mktemp("pages")
    parts = [
        found((KMOD / name).read_text(), pattern)
        for name, each in PARTS.items()
        for pattern in each
    ]
    (folder / "pages.c").write_text("\n".join((BEFORE, *parts, AFTER)))
    flags = ("-std=gnu11", "-Wall", "-shared", "-fPIC", "-fsanitize=undefined",
             "-fsanitize-undefined-trap-on-error")  # fmt: skip
    modules = {}
    for shift in SHIFTS:
        path = folder / f"pages-{shift}.so"
        run(COMPILER, *flags, f"-DPAGE_SHIFT={shift}", folder / "pages.c", "-o", path)
        modules[shift] = Module(path, shift)
    return modules.__getitem__


@pytest.mark.parametrize("pair", PAIRS)
def test_a_message_of_a_lane_is_the_largest_that_both_have_elements_for(
    of: Callable[[int], Module], pair: tuple[int, int]
) -> None:
    client, server = map(of, pair)
    for theirs, ours in product(DEVICES, DEVICES):
        offer, offered = client.state("lane_offer", theirs)
        answer, accepted = server.state("lane_accept", ours, offer) if offer else (0, 0)
        units = client.call("lane_agree", offered, answer)
        if min(theirs, ours) <= HEAD + 1:
            assert units == 0
            continue
        data = units * UNIT
        # the server refuses longer segments
        assert units == accepted
        room = [
            (min(sges, MOST) - HEAD - 1) * each.page
            for sges, each in ((theirs, client), (ours, server))
        ]
        assert data == min(*room, UNITS_MAX * UNIT)
        assert HEAD + client.pages(data) <= min(theirs, MOST)
        assert HEAD + server.pages(data) <= min(ours, MOST)


@pytest.mark.parametrize("pair", PAIRS)
def test_an_extent_is_as_large_to_the_client_as_to_the_server(
    of: Callable[[int], Module], pair: tuple[int, int]
) -> None:
    client, server = map(of, pair)
    for depth in DEPTHS:
        answer, order = server.state("extent_offer", depth)
        size = server.page << order
        assert client.call("extent_agree", answer) * UNIT == size
        # a memory region has no more pages, and an extent no more than a MiB
        assert size <= min(depth * server.page, MIB) < 2 * size


@pytest.mark.parametrize("pair", PAIRS)
def test_padded_data_fits_into_the_pages_of_the_receiver(
    of: Callable[[int], Module], pair: tuple[int, int]
) -> None:
    client, server = map(of, pair)
    for theirs, ours, size in product(PADDED, PADDED, INLINE):
        offer, client_room = client.state("padded_room", theirs, size)
        answer, server_room = server.state("padded_room", ours, size)
        assert client_room % client.page == server_room % server.page == 0
        assert client.call("padded_call", theirs, answer) == min(theirs, server_room)
        for sges in DEVICES:
            most = server.call("padded_reply", ours, offer, sges)
            assert most == min(ours, client_room, max(sges - HEAD - 1, 0) * server.page)
            assert not most or HEAD + server.pages(most) <= sges


@pytest.mark.parametrize(("shift", "mib"), list(zip(SHIFTS, (4, 6, 24), strict=True)))
def test_padded_receives_of_a_connection_need_that_much_server_memory(
    of: Callable[[int], Module], shift: int, mib: int
) -> None:
    """A receive has a page in front, and its data at least one: with large pages they are large."""
    module = of(shift)
    numbers = reference.numbers()
    receives = [numbers[name].default for name in ("padded_max", "inline_recv", "credits")]
    assert module.call("padded_charge", *receives, (mib - 1) * MIB) == 0
    pages = module.call("padded_charge", *receives, mib * MIB)
    assert (mib - 1) * MIB < pages * module.page <= mib * MIB
    # the page of contributors names the size of pages with which the default does not suffice
    if mib > numbers["server_memory"].default:
        text = (KMOD.parent / "docs" / "dev" / "module-internals.md").read_text()
        named = re.findall(r"pages of (\d+) KiB, one .*? `server_memory` of (\d+)\.", text)
        assert named == [(str(module.page >> 10), str(mib))]
