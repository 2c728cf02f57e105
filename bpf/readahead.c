/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Read-ahead on NFS files, by device: pages that were read before an
 * application requested them, and whether they were used, used before they
 * arrived, or dropped unused.
 *
 * A page is ahead from the readahead request to NFS until an application reads
 * it or the page cache drops it. A map entry has one bit per page, for 64
 * pages.
 */
#define WORDS		65536
#define WORDS_AT_ONCE	64

/* probes/sets/readahead.py has the same names in the same order */
enum ahead_count { WINDOWS, DEMANDED, AHEAD, USED, LATE, DROPPED, AHEAD_COUNTS };

/* event that concerns a range of pages */
enum ahead_what { PAGES_ASKED, PAGES_CAME, PAGES_READ, PAGES_DROPPED };

struct ahead_key {
	u64 inode;
	u64 word;
	u64 device;
};

struct ahead_word {
	u64 ahead;		/* requested, not read yet */
	u64 came_at;		/* arrival of the last page, ns */
};

struct ahead_row {
	/* of a CPU: negative if pages that were ahead on another CPU are demanded on this one */
	s64 counts[AHEAD_COUNTS];
};

/* A reading thread: the start of its read, and the readahead window that the read triggered */
struct ahead_thread {
	u64 thread;
	u64 entered;
	u64 inode;
	u64 device;
	u64 first;
	u64 last;
};

BPF_TABLE("lru_hash", struct ahead_key, struct ahead_word, ahead_words, WORDS);
/* indexed by thread number; a colliding thread takes the slot */
BPF_ARRAY(ahead_threads, struct ahead_thread, TASK_SLOTS);
BPF_F_TABLE("percpu_hash", u64, struct ahead_row, ahead_rows, ROWS, WHEN_NEEDED);

/* Bit mask of pages @first to @last in word number @word */
static __always_inline u64 ahead_bits(u64 word, u64 first, u64 last)
{
	u64 from = word * 64, bits = ~0ULL;

	if (first > from)
		bits &= ~0ULL << ((first - from) & 63);
	if (last < from + 63)
		bits &= ~0ULL >> ((63 - (last - from)) & 63);
	return bits;
}

/* Apply an event to the pages of a word. Returns the number of pages that were ahead */
static __always_inline u32 ahead_do(struct ahead_key *key, u64 bits, enum ahead_what what,
				    struct ahead_row *row, u64 since)
{
	struct ahead_word fresh = {}, *word = ahead_words.lookup(key);
	u64 met;

	if (!word && what == PAGES_ASKED)
		word = ahead_words.lookup_or_try_init(key, &fresh);
	if (!word)
		return 0;
	met = word->ahead & bits;
	if (what == PAGES_CAME) {
		word->came_at = bpf_ktime_get_ns();
		return 0;
	}
	if (what == PAGES_ASKED) {
		word->ahead |= bits;
		met = bits & ~met;
		row->counts[AHEAD] += __builtin_popcountll(met);
		return 0;
	}
	word->ahead &= ~bits;
	row->counts[what == PAGES_READ ? USED : DROPPED] += __builtin_popcountll(met);
	if (what == PAGES_READ && since && word->came_at > since)
		row->counts[LATE] += __builtin_popcountll(met);
	return __builtin_popcountll(met);
}

static __always_inline u32 ahead_range(u64 device, u64 inode, u64 first, u64 last,
				       enum ahead_what what, u64 since)
{
	struct ahead_key key = { .inode = inode, .device = device };
	struct ahead_row fresh = {}, *row;
	u32 met = 0;
	int i;

	row = ahead_rows.lookup(&device);
	if (!row && what == PAGES_ASKED)
		row = ahead_rows.lookup_or_try_init(&device, &fresh);
	if (!row && what == PAGES_ASKED)
		lose(LOST_WINDOWS);
	/* NFS has not read ahead on this device */
	if (!row)
		return 0;
	for (i = 0; i < WORDS_AT_ONCE; i++) {
		key.word = first / 64 + i;
		if (key.word > last / 64)
			break;
		met += ahead_do(&key, ahead_bits(key.word, first, last), what, row, since);
	}
	return met;
}

static __always_inline struct ahead_thread *ahead_slot(void)
{
	int slot = bpf_get_current_pid_tgid() & (TASK_SLOTS - 1);

	return ahead_threads.lookup(&slot);
}

/* Get the state of this thread, if it has read a file on NFS */
static __always_inline struct ahead_thread *ahead_thread(void)
{
	struct ahead_thread *here = ahead_slot();

	return here && here->thread == bpf_get_current_pid_tgid() ? here : NULL;
}

/* An application reads a file on NFS: probes/sets/readahead.py attaches this to nfs_start_io_read() */
int readahead_enters(void *context)
{
	struct ahead_thread *here = ahead_slot();

	if (!here)
		return 0;
	here->thread = bpf_get_current_pid_tgid();
	here->entered = bpf_ktime_get_ns();
	here->device = 0;
	return 0;
}

/* Pages that the reader waits for are part of the window that it triggered: they are not ahead */
static __always_inline void ahead_demanded(struct ahead_thread *here, u64 device, u64 inode,
					   u64 first, u64 last)
{
	struct ahead_row *row = ahead_rows.lookup(&device);
	u64 met;

	if (!row || here->device != device || here->inode != inode || here->last < first ||
	    here->first > last)
		return;
	first = here->first > first ? here->first : first;
	last = here->last < last ? here->last : last;
	met = ahead_range(device, inode, first, last, PAGES_READ, 0);
	row->counts[DEMANDED] += met;
	row->counts[AHEAD] -= met;
	row->counts[USED] -= met;
}

/* this event follows the arrival of the pages */
PROBE(filemap, mm_filemap_get_pages)
{
	struct ahead_thread *here = ahead_thread();
	u64 device = args->s_dev;

	/* NFS uses anonymous devices: major number 0 */
	if (device >> 20)
		return 0;
	if (here) {
		ahead_demanded(here, device, args->i_ino, args->index, args->last_index);
		here->device = 0;
	}
	ahead_range(device, args->i_ino, args->index, args->last_index, PAGES_READ,
		    here ? here->entered : 0);
	return 0;
}

PROBE(filemap, mm_filemap_fault)
{
	if (!(args->s_dev >> 20))
		ahead_range(args->s_dev, args->i_ino, args->index, args->index, PAGES_READ, 0);
	return 0;
}

PROBE(filemap, mm_filemap_map_pages)
{
	if (!(args->s_dev >> 20))
		ahead_range(args->s_dev, args->i_ino, args->index, args->last_index, PAGES_READ, 0);
	return 0;
}

PROBE(nfs, nfs_aop_readahead)
{
	u64 first = args->offset >> PAGE_BITS, last = first + args->nr_pages - 1;
	struct ahead_thread *here = ahead_thread();
	u64 device = args->dev;
	struct ahead_row *row;

	if (!args->nr_pages)
		return 0;
	ahead_range(device, args->fileid, first, last, PAGES_ASKED, 0);
	row = ahead_rows.lookup(&device);
	if (row)
		row->counts[WINDOWS]++;
	/* a second window of the same read is farther ahead, and the reader does not wait for it */
	if (!here || here->device)
		return 0;
	here->device = device;
	here->inode = args->fileid;
	here->first = first;
	here->last = last;
	return 0;
}

PROBE(nfs, nfs_readpage_done)
{
	u64 first = args->offset >> PAGE_BITS;

	if (args->arg_count)
		ahead_range(args->dev, args->fileid, first,
			    (args->offset + args->arg_count - 1) >> PAGE_BITS, PAGES_CAME, 0);
	return 0;
}

PROBE(filemap, mm_filemap_delete_from_page_cache)
{
	u64 last = args->index + (1ULL << args->order) - 1;

	if (!(args->s_dev >> 20))
		ahead_range(args->s_dev, args->i_ino, args->index, last, PAGES_DROPPED, 0);
	return 0;
}
