// SPDX-License-Identifier: GPL-2.0-only
/*
 * A fio engine that reads and writes files of NFS servers through libnfsrdma, without a mount.
 *
 *	fio --ioengine=external:lib/build/fio.so --target=server:/export --filename=path ...
 *
 * Each job has a session of its own. With iodepth 1 a request is a call that waits; with more, requests of a
 * batch (iodepth_batch) leave by one doorbell. The buffers are one registered region, so that RDMA moves all
 * data. Built against the source of the fio that loads it, because fio accepts engines of its own version only.
 */
#include "config-host.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "fio.h"
#include "optgroup.h"

#include <nfsrdma.h>

/* of nfsrdma_options.depth */
#define DEPTH_MAX	127

struct engine_options {
	/* fio takes an option at offset 0 for none */
	void *pad;
	char *target;
	unsigned int port;
	unsigned int version;
	unsigned int optimistic;
};

/*
 * struct engine - state of a job
 * @session: session
 * @region: registration of the buffers
 * @bytes: size of the buffers
 * @ended: completions that fio has not collected
 * @waiting: requests of the next batch
 * @count: number of them
 */
struct engine {
	struct nfsrdma_session *session;
	struct nfsrdma_region *region;
	size_t bytes;
	struct nfsrdma_completion ended[DEPTH_MAX];
	struct io_u *waiting[DEPTH_MAX];
	unsigned int count;
};

static struct fio_option options[] = {
	{
		.name = "target",
		.lname = "NFS export",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct engine_options, target),
		.help = "SERVER:/EXPORT; filename is a path below it",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "port",
		.lname = "RDMA port",
		.type = FIO_OPT_INT,
		.off1 = offsetof(struct engine_options, port),
		.help = "Port of the server's RDMA listener",
		.def = "20049",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "nfs_version",
		.lname = "NFS version",
		.type = FIO_OPT_INT,
		.off1 = offsetof(struct engine_options, version),
		.help = "3, or 41 for NFSv4.1",
		.def = "3",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "optimistic",
		.lname = "Optimistic reads",
		.type = FIO_OPT_BOOL,
		.off1 = offsetof(struct engine_options, optimistic),
		.help = "Read the page cache of a server of nfsrdma by RDMA",
		.def = "0",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = NULL,
	},
};

static void report(struct thread_data *td, int rc, const char *what, const char *name)
{
	log_err("nfsrdma: %s %s: %s\n", what, name, nfsrdma_message());
	td_verror(td, -rc, what);
}

static int connect_to(struct thread_data *td, struct nfsrdma_session **session)
{
	struct engine_options *given = td->eo;
	struct nfsrdma_options o = {
		.size = sizeof(o), .port = given->port, .version = given->version, .depth = td->o.iodepth,
		.optimistic = given->optimistic,
	};
	int rc;

	if (!given->target || td->o.iodepth > DEPTH_MAX) {
		log_err("nfsrdma: needs target=SERVER:/EXPORT, and an iodepth of at most %d\n", DEPTH_MAX);
		td_verror(td, EINVAL, "options");
		return 1;
	}
	rc = nfsrdma_connect(given->target, &o, session);
	if (rc)
		report(td, rc, "connect", given->target);
	return !!rc;
}

static int open_flags(struct thread_data *td)
{
	struct engine_options *given = td->eo;
	int way = given->optimistic ? NFSRDMA_OPTIMISTIC : 0;

	if (!td_write(td))
		return O_RDONLY | way;
	return O_RDWR | way | (td->o.allow_create ? O_CREAT : 0) | (td->o.sync_io ? O_DSYNC : 0);
}

/* Where the job's part of a file ends; a job without a size has all of the file. */
static uint64_t end_of(struct thread_data *td, struct fio_file *f)
{
	uint64_t part = td->o.size / td->o.nr_files;

	if (td->o.file_size_low)
		return td->o.file_size_low;
	return part ? get_start_offset(td, f) + part : f->real_file_size;
}

/* Give a file the size that the job expects: reads of a job that also writes do not find its end. */
static int extend(struct thread_data *td, struct nfsrdma_session *session, struct fio_file *f, uint64_t size)
{
	struct nfsrdma_file *file;
	int rc;

	rc = nfsrdma_open(session, f->file_name, open_flags(td), 0644, &file);
	if (rc) {
		report(td, rc, "open", f->file_name);
		return 1;
	}
	rc = nfsrdma_ftruncate(file, size);
	nfsrdma_close(file);
	if (rc) {
		report(td, rc, "extend", f->file_name);
		return 1;
	}
	f->real_file_size = size;
	return 0;
}

/* Find the size of a file, and extend it if the job writes; fio lays out no files over this engine. */
static int lay_out(struct thread_data *td, struct nfsrdma_session *session, struct fio_file *f)
{
	struct stat st = {};
	uint64_t end;
	int rc;

	rc = nfsrdma_stat(session, f->file_name, &st);
	if (rc && (rc != -ENOENT || !td_write(td))) {
		report(td, rc, "stat", f->file_name);
		return 1;
	}
	f->filetype = FIO_TYPE_FILE;
	f->real_file_size = st.st_size;
	fio_file_set_size_known(f);
	if (td->o.fill_device && td_write(td)) {
		f->real_file_size = -1ULL;
		return 0;
	}
	end = end_of(td, f);
	if (!end) {
		log_err("nfsrdma: %s: an empty file, needs size=\n", f->file_name);
		td_verror(td, EINVAL, "size");
		return 1;
	}
	if (f->real_file_size >= end)
		return 0;
	if (td_write(td))
		return extend(td, session, f, end);
	log_err("nfsrdma: %s: found %llu bytes, expected %llu\n", f->file_name,
		(unsigned long long)f->real_file_size, (unsigned long long)end);
	td_verror(td, ENODATA, "size");
	return 1;
}

/*
 * fio calls it for all jobs before the first one starts (create_serialize), so that no job changes the size of a
 * file that another one writes. The job's process, which does not exist yet, connects for itself.
 */
static int setup(struct thread_data *td)
{
	struct nfsrdma_session *session;
	struct fio_file *f;
	unsigned int i;
	int rc;

	rc = connect_to(td, &session);
	if (rc)
		return rc;
	for_each_file(td, f, i) {
		rc = lay_out(td, session, f);
		if (rc)
			break;
	}
	nfsrdma_disconnect(session);
	return rc;
}

static int init(struct thread_data *td)
{
	struct engine *e = calloc(1, sizeof(*e));

	if (!e) {
		td_verror(td, ENOMEM, "engine");
		return 1;
	}
	td->io_ops_data = e;
	return connect_to(td, &e->session);
}

static void cleanup(struct thread_data *td)
{
	struct engine *e = td->io_ops_data;
	struct nfsrdma_stats stats = {.size = sizeof(stats)};

	if (!e)
		return;
	if (e->session) {
		nfsrdma_stats(e->session, &stats);
		log_info("nfsrdma: %s: connects %llu, calls %llu, sent again %llu, doorbells %llu, copied %llu\n",
			 td->o.name, (unsigned long long)stats.connects, (unsigned long long)stats.calls,
			 (unsigned long long)stats.resent, (unsigned long long)stats.doorbells,
			 (unsigned long long)stats.copied);
		nfsrdma_disconnect(e->session);
	}
	free(e);
	td->io_ops_data = NULL;
}

static int iomem_alloc(struct thread_data *td, size_t size)
{
	struct engine *e = td->io_ops_data;
	int rc;

	td->orig_buffer = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (td->orig_buffer == MAP_FAILED) {
		td->orig_buffer = NULL;
		return 1;
	}
	e->bytes = size;
	rc = nfsrdma_register(e->session, td->orig_buffer, size, &e->region);
	if (rc)
		report(td, rc, "register", "buffers");
	return !!rc;
}

static void iomem_free(struct thread_data *td)
{
	struct engine *e = td->io_ops_data;

	/* the server may still write to the memory of requests that have not ended: it stays mapped */
	if (!e || !e->region || nfsrdma_unregister(e->region))
		return;
	e->region = NULL;
	munmap(td->orig_buffer, e->bytes);
}

static int open_file(struct thread_data *td, struct fio_file *f)
{
	struct engine *e = td->io_ops_data;
	struct nfsrdma_file *file;
	int rc;

	rc = nfsrdma_open(e->session, f->file_name, open_flags(td), 0644, &file);
	if (rc) {
		report(td, rc, "open", f->file_name);
		return 1;
	}
	FILE_SET_ENG_DATA(f, file);
	return 0;
}

static int close_file(struct thread_data *td, struct fio_file *f)
{
	nfsrdma_close(FILE_ENG_DATA(f));
	FILE_SET_ENG_DATA(f, NULL);
	return 0;
}

static int unlink_file(struct thread_data *td, struct fio_file *f)
{
	struct engine *e = td->io_ops_data;

	return e ? -nfsrdma_unlink(e->session, f->file_name) : 0;
}

static int get_file_size(struct thread_data *td, struct fio_file *f)
{
	/* lay_out() has stored it */
	return 0;
}

/* The end of a request; fio issues again what is left of a short one. */
static void finish(struct io_u *io_u, int64_t result)
{
	if (result < 0)
		io_u->error = -result;
	else
		io_u->resid = io_u->xfer_buflen - result;
}

static void note_time(struct thread_data *td, struct io_u *io_u)
{
	if (fio_fill_issue_time(td))
		fio_gettime(&io_u->issue_time, NULL);
}

/* One request at a time: no completion has to be collected. */
static enum fio_q_status alone(struct thread_data *td, struct nfsrdma_file *file, struct io_u *io_u)
{
	note_time(td, io_u);
	if (io_u->ddir == DDIR_READ)
		finish(io_u, nfsrdma_pread(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset));
	else
		finish(io_u, nfsrdma_pwrite(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset));
	return FIO_Q_COMPLETED;
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u)
{
	struct nfsrdma_file *file = FILE_ENG_DATA(io_u->file);
	struct engine *e = td->io_ops_data;
	int rc;

	fio_ro_check(td, io_u);
	if (ddir_sync(io_u->ddir)) {
		note_time(td, io_u);
		finish(io_u, nfsrdma_fsync(file));
		io_u->resid = 0;
		return FIO_Q_COMPLETED;
	}
	if (!ddir_rw(io_u->ddir) || io_u->ddir == DDIR_TRIM) {
		io_u->error = EOPNOTSUPP;
		return FIO_Q_COMPLETED;
	}
	if (td->o.iodepth == 1)
		return alone(td, file, io_u);
	if (io_u->ddir == DDIR_READ)
		rc = nfsrdma_prepare_read(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset,
					  (uintptr_t)io_u);
	else
		rc = nfsrdma_prepare_write(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset,
					   (uintptr_t)io_u);
	if (rc == -EAGAIN)
		return FIO_Q_BUSY;
	if (rc) {
		finish(io_u, rc);
		return FIO_Q_COMPLETED;
	}
	e->waiting[e->count++] = io_u;
	return FIO_Q_QUEUED;
}

static int commit(struct thread_data *td)
{
	struct engine *e = td->io_ops_data;
	struct timespec at;
	unsigned int i;
	int rc;

	if (!e->count)
		return 0;
	rc = nfsrdma_submit(e->session);
	if (rc < 0) {
		report(td, rc, "submit", "batch");
		return rc;
	}
	if (fio_fill_issue_time(td)) {
		fio_gettime(&at, NULL);
		for (i = 0; i < e->count; i++) {
			e->waiting[i]->issue_time = at;
			io_u_queued(td, e->waiting[i]);
		}
	}
	io_u_mark_submit(td, e->count);
	e->count = 0;
	return 0;
}

static int getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *t)
{
	struct engine *e = td->io_ops_data;
	int timeout = t ? t->tv_sec * 1000 + t->tv_nsec / 1000000 : -1;
	int rc;

	rc = nfsrdma_wait(e->session, e->ended, min(max, (unsigned int)DEPTH_MAX), min, timeout);
	if (rc < 0)
		report(td, rc, "wait", "completions");
	return rc;
}

static struct io_u *event(struct thread_data *td, int number)
{
	struct engine *e = td->io_ops_data;
	struct io_u *io_u = (struct io_u *)(uintptr_t)e->ended[number].user_data;

	finish(io_u, e->ended[number].result);
	return io_u;
}

/* fio looks for this name */
struct ioengine_ops ioengine = {
	.name = "nfsrdma",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_MEMALIGN | FIO_ASYNCIO_SETS_ISSUE_TIME,
	.setup = setup,
	.init = init,
	.cleanup = cleanup,
	.iomem_alloc = iomem_alloc,
	.iomem_free = iomem_free,
	.open_file = open_file,
	.close_file = close_file,
	.unlink_file = unlink_file,
	.get_file_size = get_file_size,
	.queue = queue,
	.commit = commit,
	.getevents = getevents,
	.event = event,
	.option_struct_size = sizeof(struct engine_options),
	.options = options,
};
