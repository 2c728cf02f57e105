# SPDX-License-Identifier: Apache-2.0
"""The files of the modelled card take what they can mean: debugfs.c over a debugfs of its own."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from wire.native import COMPILER

CARD = Path(__file__).parents[3] / "kmod" / "card"
# the kernel's interfaces that debugfs.c uses, and what it uses of the card
BEFORE = """
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { int counter; } atomic_t;
#define __user
#define U32_MAX ((u64)~0U)
#define NSEC_PER_SEC 1000000000L
#define THIS_MODULE NULL
#define READ_ONCE(x) (x)
#define WRITE_ONCE(x, value) ((x) = (value))
#define min(a, b) ((a) < (b) ? (a) : (b))
#define atomic_read(v) ((v)->counter)
#define atomic_set(v, to) ((v)->counter = (to))
#define CARD_MAX_UNITS 64
struct file { void *private_data; };
struct dentry { int unused; };
struct seq_file { void *private; };
struct device { int unused; };
struct file_operations {
	void *owner, *open, *llseek;
	ssize_t (*read)(struct file *, char *, size_t, loff_t *);
	ssize_t (*write)(struct file *, const char *, size_t, loff_t *);
	int (*get)(void *, u64 *);
	int (*set)(void *, u64);
};
#define DEFINE_DEBUGFS_ATTRIBUTE(name, get_, set_, format) \\
	static const struct file_operations name = { .get = get_, .set = set_ }
#define DEFINE_SHOW_ATTRIBUTE(name) static const struct file_operations name##_fops; \\
	typedef typeof(name##_show) name##_used
#define simple_open NULL
#define default_llseek NULL
enum card_firmware { CARD_RUNS, CARD_STOPPED, CARD_FAILED };
struct card_cache { u64 miss; u32 entries; };
struct card_wire {
	u64 rate, latency, message, completion_delay;
	u32 units;
	struct card_cache pages, qps;
};
static struct card {
	struct { struct device dev; bool use_cq_dim; } ib;
	struct { struct device *dev; } *function;
	struct { const char *name; } *profile;
	bool link_down, gone, recoverable, strict_keys, cached_state;
	enum card_firmware firmware;
	atomic_t lose, refuse, stuck, keep_qps, keep_regions, keep_keys, corrupt, cut_chains;
	struct card_wire wire;
	struct dentry *debugfs;
} card;
static struct { const char *name; void *data; const struct file_operations *fops; } files[64];
static int count;
#define debugfs_create_dir(name, parent) NULL
#define debugfs_remove_recursive(dir)
#define debugfs_create_file debugfs_create_file_unsafe
#define dev_name(dev) "card0"
#define seq_printf(seq, ...) printf(__VA_ARGS__)
#define ib_device_try_get(ib) true
#define ib_device_put(ib)
#define ib_unregister_device_queued(ib)
#define card_report_fatal(card)
#define card_link_changed(card)
#define card_qp_break(card, number, fatal)
static void card_set_firmware(struct card *to, enum card_firmware state) { to->firmware = state; }
static int card_wire_set_cache(struct card_wire *wire, struct card_cache *cache, u32 entries)
{
	return entries > 1 << 20 ? -EINVAL : (cache->entries = entries, 0);
}
static void debugfs_create_file_unsafe(const char *name, int mode, void *dir, void *data,
	const struct file_operations *fops)
{
	files[count].name = name;
	files[count].data = data;
	files[count++].fops = fops;
}
static int kstrtobool_from_user(const char *text, size_t length, bool *value)
{
	*value = length && strchr("yYtT1", *text);
	return length && strchr("yYtT1nNfF0", *text) ? 0 : -EINVAL;
}
static ssize_t debugfs_write_file_bool(struct file *file, const char *text, size_t length,
	loff_t *at)
{
	bool value;

	if (!kstrtobool_from_user(text, length, &value))
		*(bool *)file->private_data = value;
	return length;
}
static ssize_t debugfs_read_file_bool(struct file *file, char *text, size_t length, loff_t *at)
{
	*text = *(bool *)file->private_data ? '1' : '0';
	return 1;
}
"""
AFTER = """
static int put(int at, const char *text)
{
	struct file file = { files[at].data };
	char *end;
	u64 value;

	if (files[at].fops->write)
		return files[at].fops->write(&file, text, strlen(text), NULL);
	value = strtoull(text, &end, 0);
	if (*text < '0' || *text > '9' || *end)
		return -EINVAL;
	return files[at].fops->set(files[at].data, value) ?: (int)strlen(text);
}

static u64 value(int at)
{
	struct file file = { files[at].data };
	char text[2] = "";
	u64 found = 0;

	if (files[at].fops->read)
		files[at].fops->read(&file, text, 1, NULL);
	else if (files[at].fops->get)
		files[at].fops->get(files[at].data, &found);
	return found + strtoull(text, NULL, 10);
}

/* Write a value to a file, without one list them; prints the result and what the file then has */
int main(int argc, char **argv)
{
	int at;

	card_debugfs_add(&card);
	for (at = 0; at < count; at++)
		if (argc < 2 && (files[at].fops->write || files[at].fops->set))
			puts(files[at].name);
		else if (argc > 2 && !strcmp(files[at].name, argv[1]))
			printf("%d ", put(at, argv[2])), printf("%llu\\n", value(at));
	return 0;
}
"""
# a lab's fastest link, and half of its longest round trip in nanoseconds
FASTEST, LONGEST = 9999 * 10**9, 999_999 * 10**6 // 2
BOOLEANS = ("recoverable", "strict_keys", "cached_state")
INT_MAX = 2**31 - 1


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Writes a value to a file of the card; returns the result, and what the file then has."""
    assert COMPILER
    folder = tmp_path_factory.mktemp("debugfs")
    text = re.sub(r"^#include .*$", "", (CARD / "debugfs.c").read_text(), flags=re.MULTILINE)
    (folder / "debugfs.c").write_text(BEFORE + text + AFTER)
    program = str(folder / "debugfs")
    subprocess.run(
        (COMPILER, "-std=gnu11", "-Wall", folder / "debugfs.c", "-o", program), check=True
    )

    def ask(*words: object) -> str:
        argv = [program, *(str(word) for word in words)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return done.stdout

    return ask


def test_each_file_refuses_what_is_no_value_of_it(card: Callable[..., str]) -> None:
    names = card().split()
    assert {*BOOLEANS, "rate", "latency", "lose", "link_down", "moderation"} < {*names}
    for name in names:
        before = card(name, "?")
        assert before.startswith("-22 "), name
        # the kernel's parser of booleans reads the first character only
        odd = ("maybe", "9", "") if name in BOOLEANS else ("-1", "maybe", 2**64 - 1, 2**63 - 1)
        for value in odd:
            assert card(name, value) == before, (name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("lose", INT_MAX + 1), ("refuse", 2**32), ("rate", 2**44), ("cache_miss", 2**43)),
        *(("link_down", 2), ("link_down", 9), ("moderation", 2), ("moderation", 7)),
    ],
)
def test_a_value_that_is_too_large_is_refused(
    card: Callable[..., str], name: str, value: int
) -> None:
    assert card(name, value) == "-22 0\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("lose", INT_MAX), ("refuse", INT_MAX), ("stuck", 0), ("rate", FASTEST), ("rate", 0)),
        *(("latency", LONGEST), ("completion_delay", LONGEST), ("qp_cache_miss", 1)),
        *(("link_down", 1), ("moderation", 1), ("link_down", 0), ("units", 64), ("dead", 2)),
    ],
)
def test_a_value_is_taken(card: Callable[..., str], name: str, value: int) -> None:
    assert card(name, value) == f"{len(str(value))} {value}\n"


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize(("text", "value"), [("Y", 1), ("1\n", 1), ("N", 0), ("0", 0)])
def test_a_boolean_is_taken(card: Callable[..., str], name: str, text: str, value: int) -> None:
    assert card(name, text) == f"{len(text)} {value}\n"
