// SPDX-License-Identifier: Apache-2.0
/*
 * Readers of a mount check that each byte was in the file at some moment during the read.
 *
 *   staleness SECONDS SEED REST_US READERS MOUNT LOCAL TCP [TARGET MORE]
 *
 * MOUNT, LOCAL and TCP lead to one folder: by the mount under test, at the server, and by
 * another mount. Writers change files in LOCAL and TCP, one change after the other in each
 * file, with a random pause of up to 2 * REST_US (TCP: 16). READERS threads read from MOUNT with
 * O_DIRECT as an unprivileged user. With USER_LEVEL, MORE threads read the same folder from TARGET
 * by optimistic reads of libnfsrdma as the same user, one at a time and in batches, half of them into
 * registered memory. The program prints JSON.
 *
 * Each sector of 512 bytes has its own history: a number per change. A writer publishes the
 * number before the change begins (next) and after it ends (done). A reader takes done before
 * its pread() and next after it: each byte must be of a change between the two, and
 * zeros, a short read and EACCES need a change that allows them. Any data carries the file
 * and the incarnation of its name, the sector, and the number of the change.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef USER_LEVEL
#include <linux/securebits.h>
#include <nfsrdma.h>
#endif

#define FILES 8
#define SECTOR 512
#define BLOCK 4096
#define WORDS (SECTOR / 8)
/* an extent of 1 MiB and a part of another one */
#define SECTORS 2560
#define BURST_BYTES 65536
#define BURST_SECTORS (BURST_BYTES / SECTOR)
#define HISTORY 16
/* incarnations of a name that a reader may still look at */
#define KEPT 32
#define READER 1000
#define READERS_MOST 16
#define LOCAL_WRITERS 2
#define WRITERS (LOCAL_WRITERS + 1)
#define WRONG_SHOWN 20

enum kind { ABSENT, ZERO, DATA };

struct sector {
	atomic_uint next, done;
	atomic_uchar kinds[HISTORY];
};

/* One file that a name leads to. An odd number of the mode: only root may read. */
struct incarnation {
	atomic_uint id;
	atomic_uint mode_next, mode_done;
	struct sector sectors[SECTORS];
};

struct name {
	pthread_mutex_t mutex;
	/* id of the file that it leads to */
	atomic_uint next, done;
	atomic_uint size;	/* in sectors */
	struct incarnation kept[KEPT];
};

enum op {
	OVERWRITE, DIRECT, APPEND, SHRINK, EXTEND, PUNCH, REPLACE, RECREATE, CHMOD, MAPPED, EMPTY,
	OPS
};
static const char *const op_names[OPS] = {
	"overwrite", "direct", "append", "shrink", "extend", "punch", "replace", "recreate",
	"chmod", "mapped", "empty",
};

struct counts {
	uint64_t reads, bytes, sectors, zeros, absent, torn, moving, denied, stale;
	uint64_t opens, opens_failed, unjudged, failed, wrong;
};

struct writer {
	pthread_t thread;
	const char *folder;
	bool remote;
	uint64_t random;
	uint64_t ops[OPS], unsupported;
};

struct reader {
	pthread_t thread;
	bool user_level;
#ifdef USER_LEVEL
	bool registers;
	struct nfsrdma_session *session;
	struct nfsrdma_stats stats;
#endif
	uint64_t random;
	struct counts counts;
	int last_errno;
};

static struct name *names;
static const char *mount_folder, *target;
static unsigned long rest_us;
static atomic_bool over;
static atomic_uint writer_errors;
static pthread_mutex_t wrong_mutex = PTHREAD_MUTEX_INITIALIZER;
static char wrong_texts[WRONG_SHOWN][240];
static unsigned int wrong_count;

static uint64_t draw(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return x ^ (x >> 31);
}

static uint32_t below(uint64_t *state, uint32_t limit)
{
	return draw(state) % limit;
}

static void pause_us(uint64_t us)
{
	struct timespec time = { us / 1000000, us % 1000000 * 1000 };

	nanosleep(&time, NULL);
}

/* --- content --- */

/* The first two words name the sector, the others depend on them. None is zero. */
static inline uint64_t word(uint32_t id, uint32_t sector, uint32_t number, uint32_t i)
{
	uint64_t first = (uint64_t)id << 32 | number;
	uint64_t second = 0x5ec7000000000000 | sector;

	if (i == 0)
		return first;
	if (i == 1)
		return second;
	first = (first ^ second * 0xd6e8feb86659fd93) + i * 0x9e3779b97f4a7c15;
	first = (first ^ (first >> 29)) * 0xbf58476d1ce4e5b9;
	return (first ^ (first >> 32)) | 1;
}

static void fill(uint64_t *words, uint32_t id, uint32_t sector, uint32_t number)
{
	for (uint32_t i = 0; i < WORDS; i++)
		words[i] = word(id, sector, number, i);
}

static bool is_version(const uint64_t *words, uint32_t id, uint32_t sector, uint32_t number)
{
	for (uint32_t i = 0; i < WORDS; i++)
		if (words[i] != word(id, sector, number, i))
			return false;
	return true;
}

/* --- histories --- */

static void begin(struct incarnation *file, uint32_t first, uint32_t count, enum kind kind)
{
	for (uint32_t i = first; i < first + count; i++) {
		struct sector *sector = &file->sectors[i];
		uint32_t number = sector->next + 1;

		sector->kinds[number % HISTORY] = kind;
		sector->next = number;
	}
}

static void end(struct incarnation *file, uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < first + count; i++)
		file->sectors[i].done = file->sectors[i].next;
}

/* Whether a change of a kind was current. A history that is too long allows everything. */
static bool was(const struct sector *sector, uint32_t low, uint32_t high, enum kind kind)
{
	if (high - low >= HISTORY - 1)
		return true;
	for (uint32_t number = low; number - low <= high - low; number++)
		if (sector->kinds[number % HISTORY] == kind)
			return true;
	return false;
}

static struct incarnation *incarnation(struct name *name, uint32_t id)
{
	return &name->kept[id % KEPT];
}

/* Begin a new incarnation, which no name leads to. */
static struct incarnation *incarnation_new(struct name *name, uint32_t id)
{
	struct incarnation *file = incarnation(name, id);

	file->id = 0;
	for (uint32_t i = 0; i < SECTORS; i++) {
		file->sectors[i].next = file->sectors[i].done = 0;
		memset((void *)file->sectors[i].kinds, ABSENT, HISTORY);
	}
	file->mode_next = file->mode_done = 0;
	file->id = id;
	return file;
}

/* --- writers --- */

static void writer_failed(const char *what)
{
	if (atomic_fetch_add(&writer_errors, 1) < 10)
		fprintf(stderr, "writer: %s: %s\n", what, strerror(errno));
}

static void path_of(char *path, const char *folder, uint32_t number, const char *suffix)
{
	snprintf(path, PATH_MAX, "%s/f%u%s", folder, number, suffix);
}

static void fill_next(uint64_t *room, struct incarnation *file, uint32_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		fill(room + i * WORDS, file->id, first + i, file->sectors[first + i].next);
}

static void write_all(int fd, const void *room, uint32_t first, uint32_t count)
{
	size_t size = (size_t)count * SECTOR;

	if (pwrite(fd, room, size, (off_t)first * SECTOR) != (ssize_t)size)
		writer_failed("pwrite");
}

/* A random run of sectors in [0, size); whole blocks if @blocks. Returns the length. */
static uint32_t choose(struct writer *writer, uint32_t size, bool blocks, uint32_t *first)
{
	uint32_t unit = blocks ? BLOCK / SECTOR : 1, count;

	if (size < unit)
		return 0;
	*first = below(&writer->random, size / unit);
	count = size / unit - *first;
	count = 1 + below(&writer->random, count < 128 / unit ? count : 128 / unit);
	*first *= unit;
	return count * unit;
}

static void change(struct writer *writer, struct name *name, const char *path, enum op op,
		   uint64_t *room)
{
	struct incarnation *file = incarnation(name, name->done);
	bool direct = op == DIRECT || (writer->remote && op == APPEND);
	uint32_t first = 0, count, old = name->size;
	int fd, flags = op == MAPPED ? O_RDWR : O_WRONLY;
	void *map;

	switch (op) {
	case APPEND:
		first = old;
		count = SECTORS - old < 64 ? SECTORS - old : 64;
		count = count ? 1 + below(&writer->random, count) : 0;
		break;
	case SHRINK:
		first = old ? below(&writer->random, old) : 0;
		count = old - first;
		break;
	case EXTEND:
		first = old;
		count = old < SECTORS ? 1 + below(&writer->random, SECTORS - old) : 0;
		break;
	default:
		/* a client may write a whole page where a part of it was changed */
		count = choose(writer, old, writer->remote && !direct, &first);
	}
	if (!count)
		return;
	fd = open(path, flags | (direct ? O_DIRECT : 0));
	if (fd < 0 && direct && errno == EINVAL) {
		writer->unsupported++;
		return;
	}
	if (fd < 0) {
		writer_failed("open");
		return;
	}
	if (below(&writer->random, 8) == 0)
		pause_us(below(&writer->random, 2000));
	begin(file, first, count,
	      op == SHRINK ? ABSENT : op == EXTEND || op == PUNCH ? ZERO : DATA);
	switch (op) {
	case SHRINK:
		name->size = first;
		if (ftruncate(fd, (off_t)first * SECTOR))
			writer_failed("ftruncate");
		break;
	case EXTEND:
		name->size = first + count;
		if (ftruncate(fd, (off_t)name->size * SECTOR))
			writer_failed("ftruncate");
		break;
	case PUNCH:
		if (syscall(SYS_fallocate, fd, 3 /* PUNCH_HOLE | KEEP_SIZE */,
			    (off_t)first * SECTOR, (off_t)count * SECTOR))
			writer_failed("fallocate");
		break;
	case MAPPED:
		fill_next(room, file, first, count);
		map = mmap(NULL, SECTORS * SECTOR, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (map == MAP_FAILED) {
			writer_failed("mmap");
			break;
		}
		memcpy((char *)map + (size_t)first * SECTOR, room, (size_t)count * SECTOR);
		munmap(map, SECTORS * SECTOR);
		break;
	default:
		fill_next(room, file, first, count);
		write_all(fd, room, first, count);
		if (op == APPEND)
			name->size = first + count;
	}
	/* by NFS, close() has written what the system call before it changed */
	if (writer->remote) {
		close(fd);
		end(file, first, count);
		return;
	}
	end(file, first, count);
	if (below(&writer->random, 8) == 0)
		pause_us(below(&writer->random, 2000));
	close(fd);
}

static void write_new(struct writer *writer, struct name *name, struct incarnation *file,
		      const char *path, uint64_t *room)
{
	/* most files have one extent, and are soon written */
	uint32_t size = 64 + below(&writer->random, below(&writer->random, 4) ? 640 : SECTORS - 63);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	if (fd < 0) {
		writer_failed("create");
		return;
	}
	for (uint32_t first = 0; first < size; first += 128) {
		uint32_t count = size - first < 128 ? size - first : 128;

		begin(file, first, count, DATA);
		fill_next(room, file, first, count);
		write_all(fd, room, first, count);
		if (!writer->remote)
			end(file, first, count);
	}
	if (fchmod(fd, 0644))
		writer_failed("fchmod");
	close(fd);
	end(file, 0, size);
	name->size = size;
}

/* Have the name lead to another file, by rename() or by unlink(). */
static void replace(struct writer *writer, struct name *name, uint32_t number, enum op op,
		    uint64_t *room)
{
	char path[PATH_MAX], new[PATH_MAX];
	struct incarnation *file;
	uint32_t id = name->done + 1;

	path_of(path, writer->folder, number, "");
	path_of(new, writer->folder, number, ".new");
	file = incarnation_new(name, id);
	if (op == REPLACE) {
		write_new(writer, name, file, new, room);
		name->next = id;
		if (rename(new, path))
			writer_failed("rename");
	} else {
		name->next = id;
		if (unlink(path))
			writer_failed("unlink");
		write_new(writer, name, file, path, room);
	}
	name->done = id;
}

static void withdraw(struct writer *writer, struct name *name, const char *path)
{
	struct incarnation *file = incarnation(name, name->done);

	file->mode_next++;
	if (chmod(path, 0600))
		writer_failed("chmod");
	file->mode_done++;
	pause_us(below(&writer->random, 10000));
	file->mode_next++;
	if (chmod(path, 0644))
		writer_failed("chmod");
	file->mode_done++;
}

/* Empty a file while it is opened, and fill its begin. */
static void empty(struct writer *writer, struct name *name, const char *path, uint64_t *room)
{
	struct incarnation *file = incarnation(name, name->done);
	uint32_t size = name->size, count = 1 + below(&writer->random, 128);
	int fd;

	begin(file, 0, size, ABSENT);
	fd = open(path, O_WRONLY | O_TRUNC);
	if (fd < 0) {
		writer_failed("open");
		return;
	}
	end(file, 0, size);
	begin(file, 0, count, DATA);
	fill_next(room, file, 0, count);
	write_all(fd, room, 0, count);
	close(fd);
	end(file, 0, count);
	name->size = count;
}

static void write_once(struct writer *writer, struct name *name, uint32_t number, uint64_t *room)
{
	/* what makes a file small is rarer than what makes it large */
	static const enum op choices[] = {
		OVERWRITE, OVERWRITE, OVERWRITE, OVERWRITE, DIRECT, DIRECT, DIRECT, APPEND, APPEND,
		APPEND, APPEND, SHRINK, EXTEND, PUNCH, PUNCH, REPLACE, REPLACE, REPLACE, RECREATE,
		CHMOD, CHMOD, MAPPED, MAPPED, EMPTY,
	};
	enum op op = choices[below(&writer->random, sizeof(choices) / sizeof(choices[0]))];
	char path[PATH_MAX];

	/* NFSv3 has no holes, and a client maps pages that others have changed */
	if (writer->remote && (op == PUNCH || op == MAPPED))
		op = OVERWRITE;
	path_of(path, writer->folder, number, "");
	switch (op) {
	case REPLACE:
	case RECREATE:
		replace(writer, name, number, op, room);
		break;
	case CHMOD:
		withdraw(writer, name, path);
		break;
	case EMPTY:
		empty(writer, name, path, room);
		break;
	default:
		change(writer, name, path, op, room);
	}
	writer->ops[op]++;
}

static void *write_on(void *argument)
{
	struct writer *writer = argument;
	uint64_t *room = aligned_alloc(BLOCK, 128 * SECTOR);

	while (!over) {
		uint32_t number = below(&writer->random, FILES);
		struct name *name = &names[number];

		if (pthread_mutex_trylock(&name->mutex))
			continue;
		write_once(writer, name, number, room);
		pthread_mutex_unlock(&name->mutex);
		/* nfsd keeps a file open for writing for a while, and grants nothing of it */
		pause_us(below(&writer->random, (writer->remote ? 16 : 2) * rest_us + 1));
	}
	free(room);
	return NULL;
}

/* --- readers --- */

static void tell(struct reader *reader, const char *what, const struct incarnation *file,
		 uint32_t number, uint32_t sector, uint32_t low, uint32_t high, const uint64_t *words)
{
	reader->counts.wrong++;
	pthread_mutex_lock(&wrong_mutex);
	if (wrong_count < WRONG_SHOWN)
		snprintf(wrong_texts[wrong_count++], sizeof(wrong_texts[0]),
			 "%s: file %u, incarnation %u, sector %u: changes %u to %u, last kind %u; "
			 "found incarnation %u, sector %llx, change %u",
			 what, number, file->id, sector, low, high,
			 file->sectors[sector].kinds[high % HISTORY],
			 words ? (uint32_t)(words[0] >> 32) : 0,
			 words ? (unsigned long long)words[1] : 0ULL, words ? (uint32_t)words[0] : 0);
	pthread_mutex_unlock(&wrong_mutex);
}

static bool is_zero(const uint64_t *words)
{
	for (uint32_t i = 0; i < WORDS; i++)
		if (words[i])
			return false;
	return true;
}

/* Whether each byte of a sector was current: a copy may meet a change half way. */
static bool is_mixture(const uint64_t *words, const struct sector *history, uint32_t id,
		       uint32_t sector, uint32_t low, uint32_t high, bool zeros)
{
	if (high - low >= HISTORY - 1)
		return true;
	for (uint32_t at = 0; at < SECTOR; at++) {
		uint8_t byte = ((const uint8_t *)words)[at];
		bool found = zeros && !byte;

		for (uint32_t number = low; !found && number - low <= high - low; number++) {
			uint64_t whole = word(id, sector, number, at / 8);

			found = history->kinds[number % HISTORY] == DATA &&
				((const uint8_t *)&whole)[at % 8] == byte;
		}
		if (!found)
			return false;
	}
	return true;
}

static void judge(struct reader *reader, struct incarnation *file, uint32_t number,
		  uint32_t sector, uint32_t low, uint32_t high, const uint64_t *words)
{
	struct sector *history = &file->sectors[sector];
	struct counts *counts = &reader->counts;
	uint32_t found;
	bool zeros;

	counts->sectors++;
	counts->moving += low != high;
	if (!words) {
		counts->absent++;
		if (!was(history, low, high, ABSENT))
			tell(reader, "short", file, number, sector, low, high, NULL);
		return;
	}
	found = (uint32_t)words[0];
	if (found - low <= high - low && (high - low >= HISTORY - 1 ||
					  history->kinds[found % HISTORY] == DATA) &&
	    is_version(words, file->id, sector, found))
		return;
	/* the end of a file that is being cut may be zeroed before it is cut */
	zeros = was(history, low, high, ZERO) || (low != high && was(history, low, high, ABSENT));
	if (zeros && is_zero(words)) {
		counts->zeros++;
		return;
	}
	if (low != high && is_mixture(words, history, file->id, sector, low, high, zeros))
		counts->torn++;
	else
		tell(reader, is_zero(words) ? "zeros" : "data", file, number, sector, low, high,
		     words);
}

/* Judge a read that failed. Returns false if the file is not to be read any more. */
static bool judge_error(struct reader *reader, struct incarnation *file, struct name *name,
			uint32_t number, uint32_t low, uint32_t high, int error)
{
	if (error == EACCES) {
		reader->counts.denied++;
		if (low == high && !(low & 1))
			tell(reader, "denied", file, number, 0, low, high, NULL);
		return true;
	}
	if (error == ESTALE && name->next != file->id) {
		reader->counts.stale++;
		return false;
	}
	reader->counts.failed++;
	reader->last_errno = error;
	return false;
}

/* A file as a reader has it open */
struct opened {
	int fd;
#ifdef USER_LEVEL
	struct nfsrdma_file *file;
#endif
};

#ifdef USER_LEVEL
#define BATCH_MOST (BURST_BYTES / BLOCK)
#define CONNECT_TRIES 600

static void library_failed(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, nfsrdma_message());
	exit(2);
}

/* The user of this thread only, but a root's ports and locked memory */
static void become_user(void)
{
	if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) ||
	    syscall(SYS_setresgid, READER, READER, READER) ||
	    syscall(SYS_setresuid, READER, READER, READER)) {
		perror("setresuid");
		exit(2);
	}
}

static void connect_user(struct reader *reader, void *room)
{
	struct nfsrdma_options options = { .size = sizeof(options), .optimistic = 1, .depth = BATCH_MOST };
	struct nfsrdma_region *region;
	int tries = 0;

	become_user();
	/* a fault may have stopped the server a moment ago */
	while (nfsrdma_connect(target, &options, &reader->session)) {
		if (tries++ == CONNECT_TRIES)
			library_failed("nfsrdma_connect");
		pause_us(100000);
	}
	if (reader->registers &&
	    nfsrdma_register(reader->session, room, BURST_BYTES, &region))
		library_failed("nfsrdma_register");
}

/* The blocks of a read by one doorbell; what follows the first short one was absent then */
static ssize_t read_batch(struct reader *reader, struct nfsrdma_file *file, char *room, size_t size,
			  off_t offset)
{
	struct nfsrdma_completion done[BATCH_MOST];
	ssize_t results[BATCH_MOST], got = 0;
	size_t n, i;
	int rc;

	for (n = 0; n * BLOCK < size; n++) {
		size_t part = size - n * BLOCK < BLOCK ? size - n * BLOCK : BLOCK;

		rc = nfsrdma_prepare_read(file, room + n * BLOCK, part, offset + n * BLOCK, n);
		if (rc)
			library_failed("nfsrdma_prepare_read");
	}
	if (nfsrdma_submit(reader->session) != (int)n ||
	    nfsrdma_wait(reader->session, done, n, n, -1) != (int)n)
		library_failed("a batch");
	for (i = 0; i < n; i++)
		results[done[i].user_data] = done[i].result;
	for (i = 0; i < n; i++)
		if (results[i] < 0)
			return results[i];
	for (i = 0; i < n; i++) {
		got += results[i];
		if (results[i] < BLOCK)
			break;
	}
	return got;
}

static ssize_t read_user(struct reader *reader, struct nfsrdma_file *file, void *room, size_t size,
			 off_t offset)
{
	if (below(&reader->random, 2))
		return read_batch(reader, file, room, size, offset);
	return nfsrdma_pread(file, room, size, offset);
}
#endif

static ssize_t read_at(struct reader *reader, const struct opened *opened, void *room, size_t size,
		       off_t offset)
{
	ssize_t got;

#ifdef USER_LEVEL
	if (reader->user_level)
		return read_user(reader, opened->file, room, size, offset);
#endif
	(void)reader;
	got = pread(opened->fd, room, size, offset);
	return got < 0 ? -errno : got;
}

/* Returns false if the file cannot be opened. */
static bool open_name(struct reader *reader, uint32_t number, struct opened *opened)
{
	char path[PATH_MAX];

#ifdef USER_LEVEL
	if (reader->user_level) {
		snprintf(path, sizeof(path), "f%u", number);
		return !nfsrdma_open(reader->session, path, O_RDONLY | NFSRDMA_OPTIMISTIC, 0,
				     &opened->file);
	}
#endif
	(void)reader;
	path_of(path, mount_folder, number, "");
	opened->fd = open(path, O_RDONLY | O_DIRECT);
	return opened->fd >= 0;
}

static void close_name(const struct reader *reader, const struct opened *opened)
{
#ifdef USER_LEVEL
	if (reader->user_level) {
		nfsrdma_close(opened->file);
		return;
	}
#endif
	(void)reader;
	close(opened->fd);
}

static bool read_once(struct reader *reader, const struct opened *opened, struct name *name,
		      uint32_t number, uint32_t id, uint64_t *room)
{
	uint32_t low[BURST_SECTORS], high[BURST_SECTORS], mode_low, mode_high;
	struct incarnation *file = incarnation(name, id);
	uint32_t first, count = BLOCK / SECTOR, size = name->size, i;
	ssize_t got;

	if (below(&reader->random, 16) == 0)
		count = 1 + below(&reader->random, BURST_SECTORS);
	/* behind the end, too, but less often */
	if (size <= count || below(&reader->random, 16) == 0)
		size = SECTORS;
	first = below(&reader->random, size - count + 1);
	if (below(&reader->random, 4))
		first = first / (BLOCK / SECTOR) * (BLOCK / SECTOR);
	mode_low = file->mode_done;
	for (i = 0; i < count; i++)
		low[i] = file->sectors[first + i].done;
	if (file->id != id)
		return false;
	got = read_at(reader, opened, room, count * SECTOR, (off_t)first * SECTOR);
	for (i = 0; i < count; i++)
		high[i] = file->sectors[first + i].next;
	mode_high = file->mode_next;
	if (file->id != id) {
		reader->counts.unjudged++;
		return false;
	}
	reader->counts.reads++;
	if (got < 0)
		return judge_error(reader, file, name, number, mode_low, mode_high, -got);
	reader->counts.bytes += got;
	if (mode_low == mode_high && (mode_low & 1))
		tell(reader, "withdrawn", file, number, first, mode_low, mode_high, room);
	if (got % SECTOR)
		tell(reader, "odd length", file, number, first, got, count * SECTOR, room);
	for (i = 0; i < count; i++)
		judge(reader, file, number, first + i, low[i], high[i],
		      (i + 1) * SECTOR <= got ? room + i * WORDS : NULL);
	/* the history may have been begun again meanwhile */
	if (file->id != id)
		return false;
	return true;
}

static void read_file(struct reader *reader, uint64_t *room)
{
	uint32_t number = below(&reader->random, FILES), id;
	uint32_t burst = 50 + below(&reader->random, 350);
	struct name *name = &names[number];
	struct opened opened;

	id = name->done;
	reader->counts.opens++;
	if (!open_name(reader, number, &opened)) {
		reader->counts.opens_failed++;
		return;
	}
	/* else it is uncertain which file the name led to */
	if (name->next == id)
		while (burst-- && !over && read_once(reader, &opened, name, number, id, room))
			;
	close_name(reader, &opened);
}

static void *read_on(void *argument)
{
	struct reader *reader = argument;
	uint64_t *room = aligned_alloc(BLOCK, BURST_BYTES);

	/* of this thread only */
	if (syscall(SYS_setresgid, READER, READER, READER) ||
	    syscall(SYS_setresuid, READER, READER, READER)) {
		perror("setresuid");
		exit(2);
	}
	while (!over)
		read_file(reader, room);
	free(room);
	return NULL;
}

#ifdef USER_LEVEL
static void *read_without_mount(void *argument)
{
	struct reader *reader = argument;
	uint64_t *room = aligned_alloc(BLOCK, BURST_BYTES);

	connect_user(reader, room);
	while (!over)
		read_file(reader, room);
	reader->stats.size = sizeof(reader->stats);
	nfsrdma_stats(reader->session, &reader->stats);
	nfsrdma_disconnect(reader->session);
	free(room);
	return NULL;
}

static void report_user(const struct reader *readers, int count)
{
	struct nfsrdma_stats sum = {.size = sizeof(sum)};
	uint64_t reads = 0;

	for (int i = 0; i < count; i++) {
		const struct nfsrdma_stats *stats = &readers[i].stats;

		if (!readers[i].user_level)
			continue;
		reads += readers[i].counts.reads;
		sum.by_reference += stats->by_reference;
		sum.refused += stats->refused;
		sum.second_connects += stats->second_connects;
		sum.second_lost += stats->second_lost;
		sum.connects += stats->connects;
	}
	printf("\"user\": {\"reads\": %llu, \"by_reference\": %llu, \"refused\": %llu, "
	       "\"connects\": %llu, \"second_connects\": %llu, \"second_lost\": %llu}, ",
	       (unsigned long long)reads, (unsigned long long)sum.by_reference,
	       (unsigned long long)sum.refused, (unsigned long long)sum.connects,
	       (unsigned long long)sum.second_connects, (unsigned long long)sum.second_lost);
}
#else
static void *read_without_mount(void *argument)
{
	(void)argument;
	fprintf(stderr, "built without USER_LEVEL\n");
	exit(2);
}

static void report_user(const struct reader *readers, int count)
{
	(void)readers, (void)count;
}
#endif

/* --- main --- */

static void add(struct counts *sum, const struct counts *counts)
{
	const uint64_t *from = (const uint64_t *)counts;
	uint64_t *to = (uint64_t *)sum;

	for (size_t i = 0; i < sizeof(*sum) / sizeof(*to); i++)
		to[i] += from[i];
}

static void report(const struct writer *writers, const struct reader *readers, int nreaders,
		   const struct counts *sum, int last_errno)
{
	static const char *const counted[] = {
		"reads", "bytes", "sectors", "zeros", "absent", "torn", "moving", "denied", "stale",
		"opens", "opens_failed", "unjudged", "failed", "wrong",
	};
	const uint64_t *values = (const uint64_t *)sum;

	_Static_assert(sizeof(counted) / sizeof(counted[0]) == sizeof(*sum) / sizeof(uint64_t),
		       "a name for each count");
	printf("{");
	for (size_t i = 0; i < sizeof(counted) / sizeof(counted[0]); i++)
		printf("\"%s\": %llu, ", counted[i], (unsigned long long)values[i]);
	for (int remote = 0; remote < 2; remote++) {
		printf("\"%s\": {", remote ? "changes_by_nfs" : "changes_at_the_server");
		for (int op = 0; op < OPS; op++) {
			uint64_t count = 0;

			for (int i = 0; i < WRITERS; i++)
				count += writers[i].remote == remote ? writers[i].ops[op] : 0;
			printf("%s\"%s\": %llu", op ? ", " : "", op_names[op],
			       (unsigned long long)count);
		}
		printf("}, ");
	}
	report_user(readers, nreaders);
	printf("\"last_errno\": %d, \"writer_errors\": %u, \"examples\": [", last_errno,
	       writer_errors);
	for (uint32_t i = 0; i < wrong_count; i++)
		printf("%s\"%s\"", i ? ", " : "", wrong_texts[i]);
	printf("]}\n");
}

int main(int argc, char **argv)
{
	struct writer writers[WRITERS] = { 0 };
	static struct reader readers[READERS_MOST];
	struct counts sum = { 0 };
	int count, all, last_errno = 0;
	uint64_t seed;
	uint64_t *room = aligned_alloc(BLOCK, 128 * SECTOR);

	if (argc != 8 && argc != 10)
		return 2;
	seed = strtoull(argv[2], NULL, 0);
	rest_us = strtoul(argv[3], NULL, 0);
	count = atoi(argv[4]);
	all = count + (argc == 10 ? atoi(argv[9]) : 0);
	target = argc == 10 ? argv[8] : NULL;
	if (all > READERS_MOST)
		return 2;
	mount_folder = argv[5];
	names = mmap(NULL, FILES * sizeof(*names), PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	umask(0);
	for (int i = 0; i < WRITERS; i++) {
		writers[i].remote = i == LOCAL_WRITERS;
		writers[i].folder = argv[writers[i].remote ? 7 : 6];
		writers[i].random = seed * 1000 + i;
	}
	for (uint32_t i = 0; i < FILES; i++) {
		char path[PATH_MAX];

		pthread_mutex_init(&names[i].mutex, NULL);
		path_of(path, argv[6], i, "");
		/* a file's incarnations differ from those of all others */
		names[i].next = (i + 1) << 24;
		write_new(&writers[0], &names[i], incarnation_new(&names[i], names[i].next), path,
			  room);
		names[i].done = names[i].next;
	}
	for (int i = 0; i < WRITERS; i++)
		pthread_create(&writers[i].thread, NULL, write_on, &writers[i]);
	for (int i = 0; i < all; i++) {
		readers[i].random = seed * 1000 + 500 + i;
		readers[i].user_level = i >= count;
#ifdef USER_LEVEL
		readers[i].registers = i % 2;
#endif
		pthread_create(&readers[i].thread, NULL,
			       readers[i].user_level ? read_without_mount : read_on, &readers[i]);
	}
	pause_us(strtoull(argv[1], NULL, 0) * 1000000);
	over = true;
	for (int i = 0; i < WRITERS; i++)
		pthread_join(writers[i].thread, NULL);
	for (int i = 0; i < all; i++) {
		pthread_join(readers[i].thread, NULL);
		add(&sum, &readers[i].counts);
		last_errno = readers[i].last_errno ?: last_errno;
	}
	report(writers, readers, all, &sum, last_errno);
	return 0;
}
