// SPDX-License-Identifier: GPL-2.0-only
/*
 * A TCG plugin for QEMU: counts executed instructions by address, 16 bytes per counter.
 * Argument orders=FIFO. A line in the FIFO names a file, which gets a line per counter:
 * address and count. user=1 counts user space by address, too: QEMU translates a page of a file
 * once, and counts it at its address in the process that executed it first. The declarations are
 * those of QEMU's plugin interface, version 2 or newer.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
/* user space shares slot 0 unless user=1; the table is much larger than the code that a machine executes */
#define SLOT_BITS 22
#define SLOTS (1u << SLOT_BITS)
#define KERNEL (1ull << 63)

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;
typedef struct {
	struct qemu_plugin_scoreboard *score;
	size_t offset;
} qemu_plugin_u64;

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t element_size);
uint64_t qemu_plugin_u64_sum(qemu_plugin_u64 entry);
/* the second argument is 0 for an addition */
void qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(struct qemu_plugin_insn *insn, int op,
							 qemu_plugin_u64 entry, uint64_t number);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id,
					   void (*cb)(uint64_t id, struct qemu_plugin_tb *tb));

EXPORT int qemu_plugin_version = 2;

static struct qemu_plugin_scoreboard *counts;
static uint64_t places[SLOTS];
static char orders[4096];
static bool user;

static size_t slot(uint64_t address)
{
	uint64_t place = address & ~15ull;
	size_t i = (place >> 4) * 0x9E3779B97F4A7C15ull >> (64 - SLOT_BITS);

	if (!user && !(address & KERNEL))
		return 0;
	/* translation is serialized */
	for (i = i ? i : 1; places[i] && places[i] != place; i = i + 1 < SLOTS ? i + 1 : 1)
		;
	places[i] = place;
	return i;
}

static qemu_plugin_u64 entry(size_t i)
{
	return (qemu_plugin_u64){ counts, i * sizeof(uint64_t) };
}

static void translated(uint64_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	for (size_t n = 0; n < qemu_plugin_tb_n_insns(tb); n++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, n);
		size_t i = slot(qemu_plugin_insn_vaddr(insn));

		qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(insn, 0, entry(i), 1);
	}
}

static void write_counts(const char *path)
{
	FILE *file = fopen(path, "w");

	if (!file)
		return;
	for (size_t i = 0; i < SLOTS; i++) {
		uint64_t count = qemu_plugin_u64_sum(entry(i));

		if (count)
			fprintf(file, "%" PRIx64 " %" PRIu64 "\n", places[i], count);
	}
	fclose(file);
}

static void *serve(void *unused)
{
	char path[4096], done[4200];

	(void)unused;
	for (;;) {
		FILE *fifo = fopen(orders, "r");

		if (!fifo)
			return NULL;
		while (fgets(path, sizeof(path), fifo)) {
			path[strcspn(path, "\n")] = 0;
			snprintf(done, sizeof(done), "%s.done", path);
			write_counts(path);
			rename(path, done);
		}
		fclose(fifo);
	}
}

EXPORT int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
	pthread_t thread;

	(void)info;
	if (argc < 1 || argc > 2 || strncmp(argv[0], "orders=", 7) || (argc == 2 && strcmp(argv[1], "user=1")))
		return -1;
	user = argc == 2;
	snprintf(orders, sizeof(orders), "%s", argv[0] + 7);
	counts = qemu_plugin_scoreboard_new(SLOTS * sizeof(uint64_t));
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return pthread_create(&thread, NULL, serve, NULL);
}
