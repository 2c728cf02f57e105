// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * EXAMPLE of the manual pages: man.py.  The comment in front of a function names the pages that it is for.
 * tests/unit/lib/test_pages.py compiles this file.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include <nfsrdma.h>

/* nfsrdma_version */
int version_is_known(void)
{
	/* 0.1.x, and no older than the header of this program */
	return nfsrdma_version() >> 8 == NFSRDMA_VERSION >> 8 && nfsrdma_version() >= NFSRDMA_VERSION;
}

/* nfsrdma_connect nfsrdma_disconnect nfsrdma_message */
int main_of_a_client(int argc, char **argv)
{
	struct nfsrdma_options options = {.size = sizeof(options), .depth = 16, .timeout = 10000};
	struct nfsrdma_session *session;

	if (argc != 2 || nfsrdma_connect(argv[1], &options, &session)) {
		fprintf(stderr, "%s\n", nfsrdma_message());
		return 1;
	}
	/* ... */
	nfsrdma_disconnect(session);
	return 0;
}

/* nfsrdma_null nfsrdma_terms nfsrdma_stats */
int describe_session(struct nfsrdma_session *session)
{
	struct nfsrdma_terms terms = {.size = sizeof(terms)};
	struct nfsrdma_stats stats = {.size = sizeof(stats)};
	int rc = nfsrdma_null(session);

	/* the reply has the server's credits */
	if (!rc)
		rc = nfsrdma_terms(session, &terms);
	if (!rc)
		rc = nfsrdma_stats(session, &stats);
	if (!rc)
		printf("%s by %s: %u credits, %llu calls\n", terms.address, terms.device, terms.credits,
		       (unsigned long long)stats.calls);
	return rc;
}

/* nfsrdma_stat nfsrdma_lstat nfsrdma_readlink */
int print_attributes(struct nfsrdma_session *session, const char *path)
{
	struct stat st;
	char text[4097];
	int rc = nfsrdma_lstat(session, path, &st);

	if (!rc && S_ISLNK(st.st_mode)) {
		if (nfsrdma_readlink(session, path, text, sizeof(text)) >= 0)
			printf("%s -> %s\n", path, text);
		rc = nfsrdma_stat(session, path, &st);
	}
	if (!rc)
		printf("%s: %lld bytes\n", path, (long long)st.st_size);
	return rc;
}

/* nfsrdma_mkdir nfsrdma_symlink nfsrdma_rename nfsrdma_unlink nfsrdma_rmdir */
int make_and_remove(struct nfsrdma_session *session)
{
	int rc = nfsrdma_mkdir(session, "run", 0777);

	if (rc && rc != -EEXIST)
		return rc;
	rc = nfsrdma_symlink(session, "../data", "run/input.new");
	if (!rc)
		rc = nfsrdma_rename(session, "run/input.new", "run/input");
	if (!rc)
		rc = nfsrdma_unlink(session, "run/input");
	return rc ? rc : nfsrdma_rmdir(session, "run");
}

/* nfsrdma_truncate */
int remove_content(struct nfsrdma_session *session, const char *path)
{
	int rc = nfsrdma_truncate(session, path, 0);

	if (rc)
		fprintf(stderr, "%s\n", nfsrdma_message());
	return rc;
}

/* nfsrdma_opendir nfsrdma_readdir nfsrdma_closedir */
int print_names(struct nfsrdma_session *session, const char *path)
{
	struct nfsrdma_entry entry = {.size = sizeof(entry)};
	struct nfsrdma_dir *dir;
	int rc = nfsrdma_opendir(session, path, &dir);

	if (rc)
		return rc;
	while ((rc = nfsrdma_readdir(dir, &entry)) == 1)
		printf("%s%s\n", entry.name, entry.has_stat && S_ISDIR(entry.stat.st_mode) ? "/" : "");
	nfsrdma_closedir(dir);
	return rc;
}

/* nfsrdma_open nfsrdma_pread nfsrdma_eof */
ssize_t read_beginning(struct nfsrdma_session *session, const char *path, void *buf, size_t size)
{
	struct nfsrdma_file *file;
	ssize_t got = nfsrdma_open(session, path, O_RDONLY, 0, &file);

	if (got)
		return got;
	got = nfsrdma_pread(file, buf, size, 0);
	/* fewer bytes than size: the file ends there, or a later part of a long read failed */
	if (got >= 0 && (size_t)got < size && !nfsrdma_eof(file))
		got = -EIO;
	nfsrdma_close(file);
	return got;
}

/* nfsrdma_pwrite nfsrdma_fsync nfsrdma_close nfsrdma_ftruncate */
int replace_content(struct nfsrdma_file *file, const char *data, size_t size)
{
	int attempts, rc = -EIO, closed;

	/* -EIO: the server restarted and may have lost what it had not committed */
	for (attempts = 0; attempts < 5 && rc == -EIO; attempts++) {
		size_t done = 0;
		ssize_t wrote = 0;

		for (; done < size; done += wrote) {
			wrote = nfsrdma_pwrite(file, data + done, size - done, done);
			if (wrote < 0)
				break;
		}
		rc = wrote < 0 ? (int)wrote : nfsrdma_fsync(file);
	}
	if (!rc)
		rc = nfsrdma_ftruncate(file, size);
	/* after a successful fsync, there is nothing left to commit */
	closed = nfsrdma_close(file);
	return rc ? rc : closed;
}

/* nfsrdma_release */
void close_without_commit(struct nfsrdma_file *file)
{
	/* what was written does not matter any more: no COMMIT, and no wait */
	nfsrdma_release(file);
}

/* nfsrdma_fstat */
long long size_of(struct nfsrdma_file *file)
{
	struct stat st;
	int rc = nfsrdma_fstat(file, &st);

	return rc ? rc : (long long)st.st_size;
}

/* nfsrdma_register nfsrdma_unregister */
int read_without_a_copy(struct nfsrdma_session *session, struct nfsrdma_file *file)
{
	const size_t size = 1 << 20;
	void *buf = aligned_alloc(4096, size);
	struct nfsrdma_region *region;
	int rc;

	if (!buf)
		return -ENOMEM;
	/* the server can write to the memory until the end of the registration */
	rc = nfsrdma_register(session, buf, size, &region);
	if (!rc) {
		ssize_t got = nfsrdma_pread(file, buf, size, 0);

		rc = nfsrdma_unregister(region);
		if (got < 0)
			rc = got;
	}
	free(buf);
	return rc;
}

/* nfsrdma_blocks_register_dmabuf */
int register_gpu(struct nfsrdma_blocks *store, int fd, void *device, size_t size, struct nfsrdma_blocks_region **region)
{
	/* all of the dma-buf; names and results are those of memory at @device from now on */
	return nfsrdma_blocks_register_dmabuf(store, fd, 0, size, device, region);
}

/* nfsrdma_register_dmabuf */
int read_to_gpu(struct nfsrdma_session *session, struct nfsrdma_file *file, int fd, uint64_t offset, void *device,
		size_t size)
{
	struct nfsrdma_region *region;
	/* of a GPU, the dma-buf begins at a page below the device pointer */
	int rc = nfsrdma_register_dmabuf(session, fd, offset, size, device, &region);

	if (!rc) {
		ssize_t got = nfsrdma_pread(file, device, size, 0);

		rc = nfsrdma_unregister(region);
		if (got < 0)
			rc = got;
	}
	return rc;
}

/* nfsrdma_prepare_read nfsrdma_submit nfsrdma_wait */
int read_blocks(struct nfsrdma_session *session, struct nfsrdma_file *file, char (*blocks)[4096], size_t count)
{
	size_t prepared = 0, done = 0;

	while (done < count) {
		struct nfsrdma_completion completions[16];
		int n, i, rc = 0;

		/* as many as there is room for, by one doorbell */
		while (prepared < count && !rc) {
			rc = nfsrdma_prepare_read(file, blocks[prepared], 4096, 4096 * prepared, prepared);
			prepared += !rc;
		}
		if (rc && (rc != -EAGAIN || prepared == done))
			return rc;
		rc = nfsrdma_submit(session);
		if (rc < 0)
			return rc;
		n = nfsrdma_wait(session, completions, 16, 1, -1);
		if (n < 0)
			return n;
		for (i = 0; i < n; i++) {
			if (completions[i].result < 0)
				return completions[i].result;
			/* a short read without eof: read the rest, as it is done for user_data 0 here */
			if (completions[i].result < 4096 && !completions[i].eof)
				fprintf(stderr, "block %llu is short\n", (unsigned long long)completions[i].user_data);
		}
		done += n;
	}
	return 0;
}

/* nfsrdma_prepare_write nfsrdma_prepare_fsync */
int write_record(struct nfsrdma_session *session, struct nfsrdma_file *file, const void *data, size_t size,
		 uint64_t offset)
{
	struct nfsrdma_completion completions[2];
	int rc, n, i;

	rc = nfsrdma_prepare_write(file, data, size, offset, 1);
	/* it waits for the write, and leaves by itself then */
	if (!rc)
		rc = nfsrdma_prepare_fsync(file, 2);
	if (!rc)
		rc = nfsrdma_submit(session);
	if (rc < 0)
		return rc;
	n = nfsrdma_wait(session, completions, 2, 2, -1);
	for (i = 0; i < n; i++) {
		if (completions[i].result < 0)
			return completions[i].result;
		if (completions[i].user_data == 1 && completions[i].result < (int64_t)size)
			return -EAGAIN;		/* write the rest */
	}
	return n < 0 ? n : 0;
}

/* nfsrdma_prepare_reads nfsrdma_prepare_writes */
int prepare_columns(struct nfsrdma_file *from, struct nfsrdma_file *to, char (*columns)[4096], int copies)
{
	struct nfsrdma_range ranges[8];
	int i;

	for (i = 0; i < 8; i++)
		ranges[i] = (struct nfsrdma_range){
			.file = copies ? to : from, .buf = columns[i], .count = 4096, .offset = 65536 * i,
			.user_data = i,
		};
	/* the number that was prepared: continue with the others after some have completed */
	return copies ? nfsrdma_prepare_writes(ranges, 8) : nfsrdma_prepare_reads(ranges, 8);
}

/* nfsrdma_fd nfsrdma_peek nfsrdma_prepare_close */
int close_in_a_loop(struct nfsrdma_session *session, struct nfsrdma_file *file)
{
	struct nfsrdma_completion done;
	struct pollfd wanted = {.fd = nfsrdma_fd(session), .events = POLLIN};
	int rc = wanted.fd < 0 ? wanted.fd : nfsrdma_prepare_close(file, 1);

	if (!rc)
		rc = nfsrdma_submit(session);
	while (rc >= 0) {
		rc = nfsrdma_peek(session, &done, 1);
		if (rc > 0)
			return done.result;
		/* at least each second: time makes no event */
		if (!rc)
			poll(&wanted, 1, 1000);
	}
	return rc;
}

/* nfsrdma_blocks_open nfsrdma_blocks_close nfsrdma_blocks_register nfsrdma_blocks_unregister */
int with_blocks(struct nfsrdma_session **sessions, size_t count, char (*blocks)[262144],
		int (*use)(struct nfsrdma_blocks *store, char (*blocks)[262144]))
{
	struct nfsrdma_blocks_options options = {.size = sizeof(options), .checksum = 1};
	struct nfsrdma_blocks_region *region = NULL;
	struct nfsrdma_blocks *store;
	int rc = nfsrdma_blocks_open(sessions, count, &options, &store);

	if (rc)
		return rc;
	rc = nfsrdma_blocks_register(store, blocks, 8 * sizeof(*blocks), &region);
	if (!rc)
		rc = use(store, blocks);
	nfsrdma_blocks_unregister(region);
	nfsrdma_blocks_close(store);
	return rc;
}

/* nfsrdma_blocks_submit nfsrdma_blocks_wait nfsrdma_blocks_cancel */
int get_blocks(struct nfsrdma_blocks *store, const char *const *names, char (*blocks)[262144])
{
	struct nfsrdma_completion done[8];
	struct nfsrdma_block gets[8];
	int hits = 0, i, n;
	uint64_t batch;

	for (i = 0; i < 8; i++)
		gets[i] = (struct nfsrdma_block){
			.name = names[i], .buf = blocks[i], .length = sizeof(blocks[i]),
			.operation = NFSRDMA_BLOCK_GET, .user_data = i,
		};
	/* what has not arrived after 50 milliseconds is a miss */
	n = nfsrdma_blocks_submit(store, gets, 8, 50, &batch);
	if (n < 0)
		return n;
	if (n < 8)
		nfsrdma_blocks_cancel(store, batch);
	n = nfsrdma_blocks_wait(store, done, 8, n, -1);
	for (i = 0; i < n; i++)
		hits += done[i].result >= 0;
	return n < 0 ? n : hits;
}

/* nfsrdma_blocks_fd */
int wait_in_a_loop(struct nfsrdma_blocks *store, struct nfsrdma_completion *done)
{
	struct pollfd wanted = {.fd = nfsrdma_blocks_fd(store), .events = POLLIN};
	int rc = wanted.fd < 0 ? wanted.fd : 0;

	while (!rc) {
		/* a program watches its other descriptors, too */
		poll(&wanted, 1, -1);
		rc = nfsrdma_blocks_wait(store, done, 1, 0, 0);
	}
	return rc;
}
