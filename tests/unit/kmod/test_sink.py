# SPDX-License-Identifier: Apache-2.0
"""The requests of a connection that breaks stop waiting for memory: nfr_svc_sink_leave()."""

import re
import subprocess
from pathlib import Path

import pytest
from wire.native import COMPILER

SINK = Path(__file__).parents[3] / "kmod" / "server" / "sink.c"
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

# Lists as in Linux, include/linux/list.h. A move counts, and a list that never ends is the end.
BEFORE = r"""
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

struct list_head { struct list_head *next, *prev; };
#define LIST_HEAD(name) struct list_head name = { &(name), &(name) }
#define ENTRY(at, type) ((type *)((char *)(at) - offsetof(type, list)))
#define list_for_each_entry_safe(pos, n, head, list)					\
	for (pos = ENTRY((head)->next, typeof(*pos)), n = ENTRY(pos->list.next, typeof(*pos)); \
		&pos->list != (head); pos = n, n = ENTRY(n->list.next, typeof(*n)))
#define list_for_each_entry_safe_reverse(pos, n, head, list)				\
	for (pos = ENTRY((head)->prev, typeof(*pos)), n = ENTRY(pos->list.prev, typeof(*pos)); \
		&pos->list != (head); pos = n, n = ENTRY(n->list.prev, typeof(*n)))

static int moves;

static void add(struct list_head *one, struct list_head *prev, struct list_head *next)
{
	next->prev = one;
	one->next = next;
	one->prev = prev;
	prev->next = one;
}

static void take(struct list_head *one)
{
	if (++moves > 1000) {
		puts("no end");
		exit(0);
	}
	one->prev->next = one->next;
	one->next->prev = one->prev;
}

#define list_move(one, head) (take(one), add(one, head, (head)->next))
#define list_move_tail(one, head) (take(one), add(one, (head)->prev, head))

static inline void list_splice(struct list_head *list, struct list_head *head)
{
	if (list->next == list)
		return;
	list->prev->next = head->next;
	head->next->prev = list->prev;
	head->next = list->next;
	list->next->prev = head;
}

struct nfr_svc_host { struct list_head sinking; };
struct nfr_svc { struct nfr_svc_host *host; };
struct nfr_svc_req { struct list_head list; struct nfr_svc *svc; char name; };

static int locked, woken;
#define spin_lock_bh(lock) (locked++)
#define spin_unlock_bh(lock) (locked--)
#define nfr_svc_sink_wake(host) (woken += locked)
"""
AFTER = r"""
int main(int argc, char **argv)
{
	struct nfr_svc_host host = { { &host.sinking, &host.sinking } };
	struct nfr_svc breaks = { &host }, stays = { &host };
	struct nfr_svc_req reqs[16], *req, *next;
	const char *name;
	int i = 0;

	for (name = argv[argc - 1]; *name; name++, i++) {
		reqs[i].name = *name;
		reqs[i].svc = *name >= 'a' ? &stays : &breaks;
		add(&reqs[i].list, host.sinking.prev, &host.sinking);
	}
	nfr_svc_sink_leave(&breaks);
	list_for_each_entry_safe(req, next, &host.sinking, list)
		putchar(req->name);
	printf(" %d %d\n", locked, woken);
	return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The function with lists in user space."""
    match = re.search(
        r"^void nfr_svc_sink_leave\(.*?^}$", SINK.read_text(), re.MULTILINE | re.DOTALL
    )
    assert match
    assert COMPILER
    folder = tmp_path_factory.mktemp("sink")
    (folder / "leave.c").write_text(BEFORE + match[0] + AFTER)
    subprocess.run(
        (COMPILER, "-std=gnu11", "-Wall", folder / "leave.c", "-o", folder / "leave"), check=True
    )
    return folder / "leave"


@pytest.mark.parametrize(
    ("waiting", "after"),
    [("", ""), ("a", "a"), ("A", "A"), ("AB", "AB"), ("aAbBc", "ABabc"), ("abCdEF", "CEFabd")],
)
def test_they_are_the_first_to_be_resumed_in_their_order(
    program: Path, waiting: str, after: str
) -> None:
    """Upper case: requests of the connection that breaks; lower case: of another one."""
    output = subprocess.run((program, waiting), capture_output=True, text=True, check=True).stdout
    assert output == f"{after} 0 1\n"
