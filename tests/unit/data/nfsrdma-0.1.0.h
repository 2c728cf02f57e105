/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
#ifndef NFSRDMA_H
#define NFSRDMA_H
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#ifdef __cplusplus
extern "C" {
#endif
#define NFSRDMA_VERSION_MAJOR	0
#define NFSRDMA_VERSION_MINOR	1
#define NFSRDMA_VERSION_PATCH	0
#define NFSRDMA_VERSION	(NFSRDMA_VERSION_MAJOR << 16 | NFSRDMA_VERSION_MINOR << 8 | NFSRDMA_VERSION_PATCH)
struct nfsrdma_session;
struct nfsrdma_file;
struct nfsrdma_dir;
struct nfsrdma_region;
struct nfsrdma_options {
	size_t size;
	uint32_t port;
	uint32_t depth;
	uint32_t inline_size;
	uint32_t timeout;
	uint32_t arena;
	uint32_t version;
	uint32_t personality;
	uint32_t optimistic;
	uint64_t cache;
};
#define NFSRDMA_OPTIMISTIC	0x40000000
struct nfsrdma_terms {
	size_t size;
	uint32_t credits;
	uint32_t send_size;
	uint32_t recv_size;
	uint32_t private_data;
	uint32_t extended;
	uint32_t personalities;
	uint32_t read_max;
	uint32_t write_max;
	char address[64];
	char device[64];
};
struct nfsrdma_stats {
	size_t size;
	uint64_t calls;
	uint64_t resent;
	uint64_t connects;
	uint64_t read_bytes;
	uint64_t written_bytes;
	uint64_t inlined;
	uint64_t direct;
	uint64_t copied;
	uint64_t doorbells;
	uint64_t by_reference;
	uint64_t no_reference;
	uint64_t renewals;
	uint64_t no_second;
	uint64_t paused;
	uint64_t refused;
	uint64_t second_lost;
	uint64_t second_connects;
	uint64_t grants;
	uint64_t revocations;
	uint64_t cached;
};
struct nfsrdma_completion {
	uint64_t user_data;
	int64_t result;
	uint32_t eof;
	uint32_t reserved[3];
};
struct nfsrdma_range {
	struct nfsrdma_file *file;
	void *buf;
	size_t count;
	uint64_t offset;
	uint64_t user_data;
	uint64_t reserved;
};
struct nfsrdma_entry {
	size_t size;
	uint64_t ino;
	const char *name;
	int has_stat;
	struct stat stat;
};
uint32_t nfsrdma_version(void);
int nfsrdma_connect(const char *target, const struct nfsrdma_options *options,
		    struct nfsrdma_session **session);
void nfsrdma_disconnect(struct nfsrdma_session *session);
int nfsrdma_null(struct nfsrdma_session *session);
int nfsrdma_terms(const struct nfsrdma_session *session, struct nfsrdma_terms *terms);
int nfsrdma_stats(const struct nfsrdma_session *session, struct nfsrdma_stats *stats);
const char *nfsrdma_message(void);
int nfsrdma_stat(struct nfsrdma_session *session, const char *path, struct stat *st);
int nfsrdma_lstat(struct nfsrdma_session *session, const char *path, struct stat *st);
ssize_t nfsrdma_readlink(struct nfsrdma_session *session, const char *path, char *buf, size_t size);
int nfsrdma_symlink(struct nfsrdma_session *session, const char *text, const char *path);
int nfsrdma_mkdir(struct nfsrdma_session *session, const char *path, mode_t mode);
int nfsrdma_rmdir(struct nfsrdma_session *session, const char *path);
int nfsrdma_unlink(struct nfsrdma_session *session, const char *path);
int nfsrdma_rename(struct nfsrdma_session *session, const char *from, const char *to);
int nfsrdma_truncate(struct nfsrdma_session *session, const char *path, uint64_t size);
int nfsrdma_opendir(struct nfsrdma_session *session, const char *path, struct nfsrdma_dir **dir);
int nfsrdma_readdir(struct nfsrdma_dir *dir, struct nfsrdma_entry *entry);
void nfsrdma_closedir(struct nfsrdma_dir *dir);
int nfsrdma_open(struct nfsrdma_session *session, const char *path, int flags, mode_t mode,
		 struct nfsrdma_file **file);
int nfsrdma_close(struct nfsrdma_file *file);
void nfsrdma_release(struct nfsrdma_file *file);
int nfsrdma_fstat(struct nfsrdma_file *file, struct stat *st);
int nfsrdma_ftruncate(struct nfsrdma_file *file, uint64_t size);
ssize_t nfsrdma_pread(struct nfsrdma_file *file, void *buf, size_t count, uint64_t offset);
ssize_t nfsrdma_pwrite(struct nfsrdma_file *file, const void *buf, size_t count, uint64_t offset);
int nfsrdma_fsync(struct nfsrdma_file *file);
int nfsrdma_register(struct nfsrdma_session *session, void *addr, size_t length,
		     struct nfsrdma_region **region);
int nfsrdma_unregister(struct nfsrdma_region *region);
int nfsrdma_prepare_read(struct nfsrdma_file *file, void *buf, size_t count, uint64_t offset,
			 uint64_t user_data);
int nfsrdma_prepare_write(struct nfsrdma_file *file, const void *buf, size_t count, uint64_t offset,
			  uint64_t user_data);
int nfsrdma_prepare_reads(const struct nfsrdma_range *ranges, size_t count);
int nfsrdma_prepare_writes(const struct nfsrdma_range *ranges, size_t count);
int nfsrdma_prepare_fsync(struct nfsrdma_file *file, uint64_t user_data);
int nfsrdma_prepare_close(struct nfsrdma_file *file, uint64_t user_data);
int nfsrdma_submit(struct nfsrdma_session *session);
int nfsrdma_peek(struct nfsrdma_session *session, struct nfsrdma_completion *completions, size_t count);
int nfsrdma_wait(struct nfsrdma_session *session, struct nfsrdma_completion *completions, size_t count,
		 size_t min, int timeout);
int nfsrdma_fd(struct nfsrdma_session *session);
#ifdef __cplusplus
}
#endif
#endif
