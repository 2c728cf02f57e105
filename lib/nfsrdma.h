/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * libnfsrdma: read and write files of NFS servers over RDMA, without the kernel's NFS client.
 *
 * A session is one connection, or two with optimistic reads, and belongs to one thread at a time: programs with
 * more threads open more sessions.  The library starts no threads.  A session that a process inherits by fork(2) is closed in the
 * child: its calls return -EOWNERDEAD there.
 *
 * Calls return a negative errno value on failure, and nfsrdma_message() then has a line of text that says
 * what happened.  The text is valid until the next failure of the thread.
 *
 * Later reads, of any session, return the data of a write that has completed.  It is on stable storage when
 * nfsrdma_fsync() or nfsrdma_close() of the file has returned 0.  Until then a restart of the server may lose it, and
 * one of these calls reports that.  Unfinished writes that overlap have no order.
 *
 * A lost connection is made again, and what has no reply is sent again with the same XID, by which the server
 * recognizes a repeated call.  After -ETIMEDOUT or -EINTR the server may have executed the call, or may still do so.
 * -ESTALE means that the file is gone: open it again.  The server gets the user and at most 16 groups of the process.
 *
 * With NFSv4.1 the server knows which files are open for writing.  It may forget them if the session makes no call for
 * the lease time of the server (nfsd: 90 seconds): the library starts no thread that would renew the lease, which any
 * call does.  After that, and after a restart of the server, the session opens its files again by itself, and calls
 * wait for that; nothing is lost, but the server checks the permissions again.  A file that it does not open again
 * reports the error of that by each read and write.
 *
 * Structs that later versions may extend begin with their size, which the caller sets: programs that were compiled
 * with an earlier header run with this library, and the other way round as long as they use nothing newer.
 */
#ifndef NFSRDMA_H
#define NFSRDMA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; nfsrdma_version() has that of the library */
#define NFSRDMA_VERSION_MAJOR	0
#define NFSRDMA_VERSION_MINOR	1
#define NFSRDMA_VERSION_PATCH	0
#define NFSRDMA_VERSION	(NFSRDMA_VERSION_MAJOR << 16 | NFSRDMA_VERSION_MINOR << 8 | NFSRDMA_VERSION_PATCH)

struct nfsrdma_session;
struct nfsrdma_file;
struct nfsrdma_dir;
struct nfsrdma_region;
struct nfsrdma_blocks;
struct nfsrdma_blocks_region;

/**
 * struct nfsrdma_options - what a session asks for; 0 selects the default
 * @size: sizeof(struct nfsrdma_options)
 * @port: TCP-style port of the server's RDMA listener (default: 20049)
 * @depth: most unfinished reads and writes, 1 to 127 (default: 63)
 * @inline_size: bytes of the largest message without chunks, 1024 to 65536 (default: 8192)
 * @timeout: milliseconds until a call fails with -ETIMEDOUT, from its start; also of nfsrdma_connect()
 *	(default: 60000)
 * @arena: bytes of registered memory for data outside of registered regions, up to 4 MiB (default: 4 MiB)
 * @version: 3 for NFSv3, or 41 for NFSv4.1, which needs no mount daemon (default: 3)
 * @personality: personality to request from a server of nfsrdma, as a bit of nfsrdma_terms.personalities; such a
 *	session has no directory and makes no calls (default: none)
 * @optimistic: 1 to have files with NFSRDMA_OPTIMISTIC, with NFSv3: a server of nfsrdma then lets the session read
 *	its page cache by RDMA over a second connection (default: 0)
 * @cache: bytes of memory for data that was read, in blocks of 4096; see nfsrdma_open() (default: none)
 * @interrupted: called by a call that waits, after a signal and five times a second: a result other than 0 ends the
 *	call with -EINTR, or with what it moved so far.  It does not use the session: calls return -EDEADLK
 *	(default: none, and signals end no call)
 * @interrupted_data: argument of @interrupted
 * @direct: 1 to have RDMA move all data of registered memory, however little it is, and no cache or message have any
 *	(default: 0, and data that fits a message is part of it)
 */
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
	int (*interrupted)(void *data);
	void *interrupted_data;
	uint64_t direct;
};

/* A flag of nfsrdma_open() */
#define NFSRDMA_OPTIMISTIC	0x40000000

/**
 * struct nfsrdma_terms - properties of a connection
 * @size: sizeof(struct nfsrdma_terms); nfsrdma_terms() sets it to the bytes that the library knows, and fills those
 * @credits: most requests that the server accepts at a time, from its last reply; 1 before the first
 * @send_size: bytes of the largest message to the server without chunks
 * @recv_size: bytes of the largest message from the server without chunks
 * @private_data: 1 if the server sent private data (RFC 8797)
 * @extended: 1 if the server is nfsrdma
 * @personalities: a bit if the server is nfsrdma and accepts options.personality or
 *	options.optimistic; kmod/personality.h has the bits
 * @read_max: bytes of the largest read (rtmax of FSINFO, at most 1 MiB); 0 without an export
 * @write_max: bytes of the largest write (wtmax of FSINFO, at most 1 MiB); 0 without an export.  With NFSv4.1 both
 *	are limited by the messages of the session, too
 * @address: address of the server, as text
 * @device: RDMA device of this host
 */
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

/**
 * struct nfsrdma_stats - what a session did since it was opened
 * @size: sizeof(struct nfsrdma_stats); nfsrdma_stats() sets it to the bytes that the library knows, and fills those
 * @calls: RPCs sent, without the repeated ones
 * @resent: RPCs sent again, after a lost connection, because the server was busy (NFS3ERR_JUKEBOX), or after the loss
 *	of what an NFSv4.1 server keeps
 * @connects: connections made
 * @read_bytes: bytes of data that the server returned
 * @written_bytes: bytes of data that the server took
 * @inlined: reads and writes whose data was part of a message
 * @direct: reads and writes whose data RDMA moved from or to memory of the caller
 * @copied: reads and writes whose data the library copied through its arena
 * @doorbells: calls of ibv_post_send(3)
 * @by_reference: reads by RDMA from the page cache of the server, without an RPC
 * @no_reference: reads of files with NFSRDMA_OPTIMISTIC by RPC, because the server has granted no memory that has
 *	their data
 * @renewals: the same, because an RPC had to renew the reference
 * @no_second: the same, because there was no second connection
 * @paused: the same, because too many RDMA reads were refused before
 * @refused: RDMA reads that the server's device refused, and that went by RPC then
 * @second_lost: RDMA reads whose connection ended, and that went by RPC then
 * @second_connects: second connections made
 * @grants: references that the server granted
 * @revocations: references that the server ended, by a notice
 * @cached: reads whose data the cache had
 * @copied_bytes: bytes of data that the processor copied, from or to a message, the arena or the cache
 */
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
	uint64_t copied_bytes;
};

/**
 * struct nfsrdma_completion - a finished read or write
 * @user_data: what the caller gave with it
 * @result: bytes read or written, or a negative errno value; fewer bytes than requested at the end of the file,
 *	or if the server moved fewer: without @eof, request the others again
 * @eof: 1 if the file ends with the data of a read
 * @reserved: 0
 */
struct nfsrdma_completion {
	uint64_t user_data;
	int64_t result;
	uint32_t eof;
	uint32_t reserved[3];
};

/**
 * struct nfsrdma_range - a read or write of nfsrdma_prepare_reads() or nfsrdma_prepare_writes()
 * @file: an open file
 * @buf: memory of the data
 * @count: bytes
 * @offset: position in bytes
 * @user_data: value that the completion returns
 * @reserved: 0
 */
struct nfsrdma_range {
	struct nfsrdma_file *file;
	void *buf;
	size_t count;
	uint64_t offset;
	uint64_t user_data;
	uint64_t reserved;
};

/**
 * struct nfsrdma_entry - entry of a directory
 * @size: sizeof(struct nfsrdma_entry), before each call
 * @ino: file number
 * @name: name, which contains no slash
 * @has_stat: 1 if @stat is valid
 * @stat: attributes
 */
struct nfsrdma_entry {
	size_t size;
	uint64_t ino;
	const char *name;
	int has_stat;
	struct stat stat;
};

/* --- the library --- */

/**
 * nfsrdma_version - get the version of the library
 *
 * Return: a number as NFSRDMA_VERSION: 0x000100 is 0.1.0.
 */
uint32_t nfsrdma_version(void);

/* --- sessions --- */

/**
 * nfsrdma_connect - open a session
 * @target: SERVER:/DIRECTORY, or SERVER alone for nfsrdma_null() and nfsrdma_terms(); an IPv6 address stands
 *	in brackets
 * @options: what to ask for; NULL for the defaults
 * @session: the new session
 *
 * Connects to the RDMA port of the server and, with a directory, gets its file handle from the server's mount
 * daemon over TCP.  Most servers answer that request only if it comes from a port below 1024, which needs
 * root or CAP_NET_BIND_SERVICE.  The session has the user and groups that the process has now.
 *
 * Return: 0; -ENODEV if no RDMA device reaches the server; -ECONNREFUSED if nothing listens there; -EACCES if
 * the mount daemon refuses the directory; -ETIMEDOUT; -EINVAL for a wrong option; -E2BIG for an option that is not
 * 0 and that this version of the library does not have; or another negative errno value.
 */
int nfsrdma_connect(const char *target, const struct nfsrdma_options *options,
		    struct nfsrdma_session **session);

/**
 * nfsrdma_disconnect - close a session
 * @session: a session, or NULL
 *
 * Unfinished reads and writes do not complete; the server no longer reaches memory of this process when the
 * call returns.  The caller closes all files and directories of the session before.  The call ends the
 * registrations that are left: do not call nfsrdma_unregister() after it.
 *
 * Return: 0; -EDEADLK or -EBUSY (a store of blocks has it): the session is open.
 */
int nfsrdma_disconnect(struct nfsrdma_session *session);

/**
 * nfsrdma_null - call the NULL procedure and wait for the reply
 * @session: a session
 *
 * Return: 0, or a negative errno value.
 */
int nfsrdma_null(struct nfsrdma_session *session);

/**
 * nfsrdma_terms - get the properties of the connection
 * @session: a session
 * @terms: the properties; the caller sets @terms->size before
 *
 * Return: 0, or -EINVAL if @terms->size is that of no version.
 */
int nfsrdma_terms(const struct nfsrdma_session *session, struct nfsrdma_terms *terms);

/**
 * nfsrdma_stats - get what the session did
 * @session: a session
 * @stats: the counts; the caller sets @stats->size before
 *
 * Return: 0, or -EINVAL if @stats->size is that of no version.
 */
int nfsrdma_stats(const struct nfsrdma_session *session, struct nfsrdma_stats *stats);

/**
 * nfsrdma_message - explain the last failure
 *
 * Return: one line of text about the last call of this thread that failed.
 */
const char *nfsrdma_message(void);

/* --- names --- */

/**
 * nfsrdma_stat - get attributes of a file
 * @session: a session with a directory
 * @path: path below the directory of the session; the last component may be a symbolic link
 * @st: the attributes
 *
 * A path consists of components; symbolic links in it are followed as long as they stay below the directory of
 * the session.  ".." is the directory above, and an error in the directory of the session.
 *
 * Return: 0, or a negative errno value.
 */
int nfsrdma_stat(struct nfsrdma_session *session, const char *path, struct stat *st);

/**
 * nfsrdma_lstat - get attributes of a file, or of a symbolic link itself
 * @session: a session with a directory
 * @path: see nfsrdma_stat()
 * @st: the attributes
 *
 * Return: 0, or a negative errno value.
 */
int nfsrdma_lstat(struct nfsrdma_session *session, const char *path, struct stat *st);

/**
 * nfsrdma_readlink - read a symbolic link
 * @session: a session with a directory
 * @path: see nfsrdma_stat()
 * @buf: buffer for the text, which ends with a zero byte
 * @size: bytes of @buf
 *
 * Return: length of the text, -ERANGE if @buf is too small, or another negative errno value.
 */
ssize_t nfsrdma_readlink(struct nfsrdma_session *session, const char *path, char *buf, size_t size);

/**
 * nfsrdma_symlink - make a symbolic link
 * @session: a session with a directory
 * @text: what the link contains
 * @path: name of the link
 *
 * Return: 0, or a negative errno value.
 */
int nfsrdma_symlink(struct nfsrdma_session *session, const char *text, const char *path);

/**
 * nfsrdma_mkdir - make a directory
 * @session: a session with a directory
 * @path: see nfsrdma_stat()
 * @mode: permission bits; the umask of the process applies
 *
 * Return: 0, or a negative errno value.
 */
int nfsrdma_mkdir(struct nfsrdma_session *session, const char *path, mode_t mode);

/**
 * nfsrdma_rmdir - remove an empty directory
 * @session: a session with a directory
 * @path: see nfsrdma_stat()
 *
 * Return: 0, or a negative errno value.
 */
int nfsrdma_rmdir(struct nfsrdma_session *session, const char *path);

/**
 * nfsrdma_unlink - remove a file
 * @session: a session with a directory
 * @path: see nfsrdma_stat()
 *
 * Return: 0, or a negative errno value.
 */
int nfsrdma_unlink(struct nfsrdma_session *session, const char *path);

/**
 * nfsrdma_rename - rename a file or directory
 * @session: a session with a directory
 * @from: old path
 * @to: new path
 *
 * Return: 0, or a negative errno value.
 */
int nfsrdma_rename(struct nfsrdma_session *session, const char *from, const char *to);

/**
 * nfsrdma_truncate - set the size of a file
 * @session: a session with a directory
 * @path: see nfsrdma_stat()
 * @size: the new size in bytes
 *
 * Return: 0, or a negative errno value.
 */
int nfsrdma_truncate(struct nfsrdma_session *session, const char *path, uint64_t size);

/**
 * nfsrdma_opendir - open a directory to list it
 * @session: a session with a directory
 * @path: see nfsrdma_stat()
 * @dir: the open directory
 *
 * Return: 0, or a negative errno value.
 */
int nfsrdma_opendir(struct nfsrdma_session *session, const char *path, struct nfsrdma_dir **dir);

/**
 * nfsrdma_readdir - get the next entry of a directory
 * @dir: an open directory
 * @entry: the entry, valid until the next call for @dir; "." and ".." are left out. The caller sets @entry->size
 *	before
 *
 * Return: 1 with an entry, 0 at the end, or a negative errno value.
 */
int nfsrdma_readdir(struct nfsrdma_dir *dir, struct nfsrdma_entry *entry);

/**
 * nfsrdma_closedir - close a directory
 * @dir: an open directory, or NULL
 *
 * Return: 0, or -EDEADLK: the directory is open.
 */
int nfsrdma_closedir(struct nfsrdma_dir *dir);

/* --- files --- */

/**
 * nfsrdma_open - open a file
 * @session: a session with a directory
 * @path: see nfsrdma_stat()
 * @flags: O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_NOFOLLOW, O_DSYNC and O_SYNC as for
 *	open(2); and NFSRDMA_OPTIMISTIC.  O_CLOEXEC, O_LARGEFILE and O_NOCTTY have no effect
 * @mode: permission bits of a new file; the umask of the process applies
 * @file: the open file
 *
 * Reads of a file with NFSRDMA_OPTIMISTIC are RDMA Reads of the server's page cache where the server has granted
 * that, and RPCs where not; nfsrdma_stats() counts both.  The server grants an extent of the file with the first
 * read in it.  A read returns bytes that the file had at some moment during the call, as one by RPC does.  Only a
 * session with the option optimistic has such files, and only a server of nfsrdma that accepts the personality
 * grants anything.
 *
 * In a session with a cache, a read returns the data of the time of this call, or of a later one: the call compares
 * size and times of the file with those of the cached data (close-to-open consistency).  A write or truncate of this
 * session drops the cached data of the file.
 *
 * The server checks the permissions with each read and write, not here.  With NFSv4.1 it checks those for writing
 * here, too.
 *
 * Return: 0; -EINVAL for another flag, such as O_APPEND; or another negative errno value.
 */
int nfsrdma_open(struct nfsrdma_session *session, const char *path, int flags, mode_t mode,
		 struct nfsrdma_file **file);

/**
 * nfsrdma_close - close a file, and have the server write it to stable storage
 * @file: an open file, or NULL
 *
 * If the file is open for writing, this does what nfsrdma_fsync() does, so that a program which opens the file
 * afterwards, on any host, finds all data of its completed writes on the server, and no restart of the server takes
 * them back (close-to-open consistency).  nfsrdma_release() closes a file without that, and nfsrdma_prepare_close()
 * without a wait.
 *
 * Unfinished reads of the file, and writes that were not submitted, complete as they would have, so their memory
 * stays in use.  Those writes may not be on stable storage then.
 *
 * The file is closed after an error, too.
 *
 * Return: 0, or the negative errno value of nfsrdma_fsync().
 */
int nfsrdma_close(struct nfsrdma_file *file);

/**
 * nfsrdma_release - close a file without a wait for the server
 * @file: an open file, or NULL
 *
 * Unfinished reads and writes of the file complete as they would have, so their memory stays in use.  What the file
 * wrote may not be on stable storage, and a loss goes unreported unless nfsrdma_fsync() or nfsrdma_close() of another
 * open file of the session, opened before or after this call, reports it.
 *
 * Return: 0, or -EDEADLK: the file is open.
 */
int nfsrdma_release(struct nfsrdma_file *file);

/**
 * nfsrdma_fstat - get attributes of an open file
 * @file: an open file
 * @st: the attributes
 *
 * Return: 0, or a negative errno value.
 */
int nfsrdma_fstat(struct nfsrdma_file *file, struct stat *st);

/**
 * nfsrdma_ftruncate - set the size of an open file
 * @file: a file that is open for writing
 * @size: the new size in bytes
 *
 * Return: 0, or a negative errno value.
 */
int nfsrdma_ftruncate(struct nfsrdma_file *file, uint64_t size);

/**
 * nfsrdma_pread - read from a file and wait for the data
 * @file: an open file
 * @buf: buffer of @count bytes; RDMA writes directly to it if it is part of a registered region
 * @count: bytes
 * @offset: position in bytes
 *
 * Return: bytes read, fewer than @count at the end of the file or if a later part failed, which nfsrdma_eof() tells
 * apart; or a negative errno value.
 */
ssize_t nfsrdma_pread(struct nfsrdma_file *file, void *buf, size_t count, uint64_t offset);

/**
 * nfsrdma_eof - tell whether the last read reached the end of the file
 * @file: an open file
 *
 * Reads of batches do not count: their completions have @eof.
 *
 * Return: 1 if the file ended with the data of the last nfsrdma_pread() of @file, which returned no error; or 0.
 */
int nfsrdma_eof(const struct nfsrdma_file *file);

/**
 * nfsrdma_pwrite - write to a file and wait for the server
 * @file: an open file
 * @buf: data; RDMA reads it directly if it is part of a registered region
 * @count: bytes
 * @offset: position in bytes
 *
 * The data is on stable storage after nfsrdma_fsync() or nfsrdma_close() returned 0, or when the call returns if the
 * file was opened with O_DSYNC or O_SYNC.  After -ETIMEDOUT the server may still write the data, at any later time.
 *
 * Return: bytes written, fewer than @count if a later part failed, or a negative errno value.
 */
ssize_t nfsrdma_pwrite(struct nfsrdma_file *file, const void *buf, size_t count, uint64_t offset);

/**
 * nfsrdma_fsync - have the server write a file to stable storage
 * @file: an open file
 *
 * Waits for the unfinished writes of the file that were submitted, of all open files of the session that are the same
 * file of the server, and then has the server commit what any of them wrote, also one that was closed by
 * nfsrdma_release().  A write that failed is reported by its own result only.
 *
 * A server that restarts may lose data that it has not committed.  The library keeps no copy of it: it compares the
 * verifiers of writes and COMMIT (RFC 1813, section 3.3.21), and after such a loss this call, or nfsrdma_close(),
 * returns -EIO once for each open file that was open at the time of the loss; as long as none of them has reported it,
 * for another one, too.  A COMMIT that the server refuses, for example with -ENOSPC, is reported in the same way,
 * unless there is a loss to report.
 *
 * A result of 0 means that all writes of the file that had completed when the call began are on stable storage, except
 * those whose loss was reported.
 *
 * Return: 0; -EIO if the server may have lost data: write again what was written since the last successful call; or
 * another negative errno value, after which the call may be repeated.
 */
int nfsrdma_fsync(struct nfsrdma_file *file);

/* --- registered memory --- */

/**
 * nfsrdma_register - register memory for RDMA
 * @session: a session
 * @addr: start of the memory
 * @length: bytes
 * @region: the registered region
 *
 * The server of this session can read and write the memory until it is unregistered.  After fork(2) the child
 * has a copy; with a kernel that does not copy registered memory (ibv_is_fork_initialized(3)) it does not have
 * the memory at all.
 *
 * Return: 0, or a negative errno value; -ENOMEM often means that RLIMIT_MEMLOCK is too low.
 */
int nfsrdma_register(struct nfsrdma_session *session, void *addr, size_t length,
		     struct nfsrdma_region **region);

/**
 * nfsrdma_register_dmabuf - register memory of a dma-buf for RDMA
 * @session: a session
 * @fd: the dma-buf, such as memory of a GPU; the library duplicates it, and the caller may close it after the call
 * @offset: position of the memory in the dma-buf
 * @length: bytes
 * @addr: address by which reads and writes name the memory, such as the device pointer of a GPU
 * @region: the registered region
 *
 * The library uses @addr as a name and as the address of the registration (iova): the processor reads and writes no byte
 * there, and nothing need be mapped.  RDMA moves the data of each read and write, however little it is, and no cache
 * has any.  Memory of a read or write that is only partly in the region is refused with -EOPNOTSUPP.
 *
 * Most devices want @offset and @addr to be at the same place in a page.  The region overlaps no other one.
 *
 * Return: 0; -EOPNOTSUPP if the RDMA device, its driver or libibverbs (rdma-core before 34) cannot do that; -EINVAL if
 * @fd is no dma-buf, or has fewer bytes; -EEXIST if it overlaps another region; or another negative errno value.
 */
int nfsrdma_register_dmabuf(struct nfsrdma_session *session, int fd, uint64_t offset, size_t length, void *addr,
			    struct nfsrdma_region **region);

/**
 * nfsrdma_unregister - end a registration
 * @region: a registered region, or NULL
 *
 * Return: 0; -EBUSY while reads or writes that use the memory are unfinished.
 */
int nfsrdma_unregister(struct nfsrdma_region *region);

/* --- batches --- */

/**
 * nfsrdma_prepare_read - add a read to the next batch
 * @file: an open file
 * @buf: buffer of @count bytes, which the caller leaves alone until the read has completed
 * @count: bytes, at most nfsrdma_terms.read_max
 * @offset: position in bytes
 * @user_data: value that the completion returns
 *
 * A read whose data the cache has completes at once, unless nfsrdma_fd() was called.
 *
 * Return: 0; -EAGAIN if as many operations as options.depth are unfinished or not yet reported, or the arena
 * is full; -EMSGSIZE if @count is larger than nfsrdma_terms.read_max or, outside of registered regions, the arena; or another negative errno value.
 */
int nfsrdma_prepare_read(struct nfsrdma_file *file, void *buf, size_t count, uint64_t offset,
			 uint64_t user_data);

/**
 * nfsrdma_prepare_write - add a write to the next batch
 * @file: an open file
 * @buf: data, which the caller does not change until the write has completed
 * @count: bytes, at most nfsrdma_terms.write_max
 * @offset: position in bytes
 * @user_data: value that the completion returns
 *
 * Writes of a batch that overlap have no order.
 *
 * Return: as nfsrdma_prepare_read().
 */
int nfsrdma_prepare_write(struct nfsrdma_file *file, const void *buf, size_t count, uint64_t offset,
			  uint64_t user_data);

/**
 * nfsrdma_prepare_reads - add reads to the next batch
 * @ranges: what to read, each as by nfsrdma_prepare_read(); files of one session
 * @count: elements of @ranges
 *
 * Adds the reads in their order, up to the first for which there is no room or that is wrong.
 *
 * Return: number of reads that were added; or, if that is 0, the negative errno value of nfsrdma_prepare_read() for
 * the first one.
 */
int nfsrdma_prepare_reads(const struct nfsrdma_range *ranges, size_t count);

/**
 * nfsrdma_prepare_writes - add writes to the next batch
 * @ranges: what to write, each as by nfsrdma_prepare_write(); files of one session
 * @count: elements of @ranges
 *
 * Adds the writes in their order, up to the first for which there is no room or that is wrong.
 *
 * Return: number of writes that were added; or, if that is 0, the negative errno value of nfsrdma_prepare_write() for
 * the first one.
 */
int nfsrdma_prepare_writes(const struct nfsrdma_range *ranges, size_t count);

/**
 * nfsrdma_prepare_fsync - add an nfsrdma_fsync() to the next batch
 * @file: an open file
 * @user_data: value that the completion returns
 *
 * It waits for the writes of the file that were prepared before it, and no others.  The completion has the result of
 * nfsrdma_fsync().
 *
 * Return: 0; -EAGAIN if as many operations as options.depth are unfinished or not yet reported; or another negative
 * errno value.
 */
int nfsrdma_prepare_fsync(struct nfsrdma_file *file, uint64_t user_data);

/**
 * nfsrdma_prepare_close - add an nfsrdma_close() to the next batch
 * @file: an open file, which the caller does not use any more
 * @user_data: value that the completion returns
 *
 * It waits for the writes of the file that were prepared before it, and for no reads.  The completion has the result
 * of nfsrdma_close().
 *
 * Return: 0; or a negative errno value, with which the file stays open: -EAGAIN if as many operations as
 * options.depth are unfinished or not yet reported.
 */
int nfsrdma_prepare_close(struct nfsrdma_file *file, uint64_t user_data);

/**
 * nfsrdma_submit - send the batch
 * @session: a session
 *
 * Rings the doorbell of the RDMA device once for all operations that the server's credits allow; later calls
 * of nfsrdma_peek() and nfsrdma_wait() send the others.
 *
 * Return: number of operations of the batch, or a negative errno value.
 */
int nfsrdma_submit(struct nfsrdma_session *session);

/**
 * nfsrdma_peek - get completions without waiting
 * @session: a session
 * @completions: array
 * @count: elements of the array
 *
 * Return: number of completions, or a negative errno value.
 */
int nfsrdma_peek(struct nfsrdma_session *session, struct nfsrdma_completion *completions, size_t count);

/**
 * nfsrdma_wait - wait for completions
 * @session: a session
 * @completions: array
 * @count: elements of the array
 * @min: completions to wait for; fewer are returned if fewer are unfinished, or after @timeout; 0: those that have
 *	arrived
 * @timeout: milliseconds; -1 for no limit
 *
 * Return: number of completions, or a negative errno value.
 */
int nfsrdma_wait(struct nfsrdma_session *session, struct nfsrdma_completion *completions, size_t count,
		 size_t min, int timeout);

/**
 * nfsrdma_fd - get a file descriptor for poll(2)
 * @session: a session
 *
 * The descriptor is readable when nfsrdma_peek() may have something to do.  The session owns it.  After
 * nfsrdma_peek() returned fewer completions than its array has room for, the next message makes it readable.
 * Time does not: call nfsrdma_peek() at least each second while operations are unfinished, so that the library
 * connects again, sends calls again that a busy server delayed, and ends those without a reply.
 *
 * Return: file descriptor, or a negative errno value.
 */
int nfsrdma_fd(struct nfsrdma_session *session);

/* --- blocks --- */

/* Operations on a block */
enum nfsrdma_block_operation {
	NFSRDMA_BLOCK_GET = 1,
	NFSRDMA_BLOCK_PUT = 2,
	NFSRDMA_BLOCK_EXISTS = 3,
	NFSRDMA_BLOCK_REMOVE = 4,
};

/**
 * struct nfsrdma_blocks_options - what a store asks for; 0 selects the default
 * @size: sizeof(struct nfsrdma_blocks_options)
 * @in_flight: most operations that sessions work on at a time, 1 to 65536 (default: 256).  As many, and at least 256,
 *	may be unfinished or not yet reported: the others wait
 * @handles: most file handles of blocks and directories that the store keeps, 1 to 16777216 (default: 65536)
 * @checksum: 1 to have each block end with 32 bytes on the server that have a CRC-32C of its data: put writes them, and
 *	get compares (default: 0)
 * @trust: 1 to have NFSRDMA_BLOCK_EXISTS ask the server only about blocks whose file handle the store does not have;
 *	another client may have removed the others (default: 0)
 */
struct nfsrdma_blocks_options {
	size_t size;
	uint32_t in_flight;
	uint32_t handles;
	uint32_t checksum;
	uint32_t trust;
};

/**
 * struct nfsrdma_block - an operation of nfsrdma_blocks_submit()
 * @name: path below the directory of the sessions, at most 1023 bytes: components of at most 255 bytes with one slash
 *	between them, none of which is "." or "..", or begins with ".nfsrdma-"
 * @buf: memory of the data; RDMA moves it directly if it is registered
 * @length: bytes of @buf; of a get, the most that it takes, and with NFSv4.1 it may write to all of them
 * @user_data: value that the completion returns
 * @operation: one of enum nfsrdma_block_operation
 * @reserved: 0
 */
struct nfsrdma_block {
	const char *name;
	void *buf;
	size_t length;
	uint64_t user_data;
	uint32_t operation;
	uint32_t reserved[3];
};

/**
 * nfsrdma_blocks_open - open a store of blocks
 * @sessions: sessions with one version of NFS and one directory of one server, by one or more of its addresses
 * @count: elements of @sessions, at most 64
 * @options: what to ask for; NULL for the defaults
 * @blocks: the new store
 *
 * A block is a file that is written once and read whole.  The store has a state machine for each operation in place of
 * a thread, and belongs to one thread at a time, as its sessions do.  Each operation goes to the connected session that
 * has the least to do.  All sessions share the file handles: a further get of a block takes READs and nothing else.
 *
 * As long as the store is open, the calls for batches and nfsrdma_disconnect() fail with -EBUSY for its sessions.
 *
 * Return: 0; -EINVAL for a wrong option, a session that is there twice, or sessions with other directories or versions;
 * -E2BIG for an option that is not 0 and that this version of the library does not have; -EOPNOTSUPP if the server takes
 * too few operations in a COMPOUND of NFSv4.1; -EBUSY if a session has unfinished operations, or another store has it; or
 * another negative errno value.
 */
int nfsrdma_blocks_open(struct nfsrdma_session *const *sessions, size_t count,
			const struct nfsrdma_blocks_options *options, struct nfsrdma_blocks **blocks);

/**
 * nfsrdma_blocks_close - close a store
 * @blocks: a store, or NULL
 *
 * Unfinished operations end as by nfsrdma_blocks_cancel(), and are not reported.  The call waits at most one second
 * for the server to remove what canceled puts have left.  It ends the registrations that are left: do not
 * call nfsrdma_blocks_unregister() after it.  The sessions stay open.
 *
 * Return: 0, or -EDEADLK: the store is open.
 */
int nfsrdma_blocks_close(struct nfsrdma_blocks *blocks);

/**
 * nfsrdma_blocks_register - register memory for RDMA, in all sessions of a store
 * @blocks: a store
 * @addr: start of the memory
 * @length: bytes
 * @region: the registered region
 *
 * Return: as nfsrdma_register().
 */
int nfsrdma_blocks_register(struct nfsrdma_blocks *blocks, void *addr, size_t length,
			    struct nfsrdma_blocks_region **region);

/**
 * nfsrdma_blocks_register_dmabuf - register memory of a dma-buf for RDMA, in all sessions of a store
 * @blocks: a store without the option checksum, whose sums the processor computes
 * @fd: see nfsrdma_register_dmabuf()
 * @offset: the same
 * @length: the same
 * @addr: the same
 * @region: the registered region
 *
 * Return: as nfsrdma_register_dmabuf(); -EOPNOTSUPP also for a store with the option checksum.
 */
int nfsrdma_blocks_register_dmabuf(struct nfsrdma_blocks *blocks, int fd, uint64_t offset, size_t length, void *addr,
				   struct nfsrdma_blocks_region **region);

/**
 * nfsrdma_blocks_unregister - end a registration
 * @region: a registered region, or NULL
 *
 * Return: 0; -EBUSY while unfinished operations use the memory.
 */
int nfsrdma_blocks_unregister(struct nfsrdma_blocks_region *region);

/**
 * nfsrdma_blocks_submit - start a batch of operations
 * @blocks: a store
 * @operations: what to do; the store copies names, and uses the memory of data until the completion
 * @count: elements of @operations
 * @deadline: milliseconds after which operations of the batch that are unfinished end with -ETIMEDOUT; 0: timeout of
 *	the sessions' options
 * @batch: number of the batch, for nfsrdma_blocks_cancel(); or NULL
 *
 * NFSRDMA_BLOCK_GET reads a whole file.  Its result is the number of bytes; -ENOENT if there is no such block; -EFBIG
 * if it is longer than @length; -ESTALE if it was replaced each time that the store looked it up.  It is never a mix of two versions of a block.  After an error the memory may have any
 * bytes.
 *
 * NFSRDMA_BLOCK_PUT makes a block or replaces it, at once and whole: it writes a file with another name in the same
 * directory (".nfsrdma-" and a random number), has the server write it to stable storage, and renames it.  Directories
 * that are missing are made.  The result is the number of bytes.  After -ETIMEDOUT or
 * -ECANCELED the block is the old one or the new one, and may still become the new one; after any other error it is the
 * old one.  A server that does not reply may keep the file with the other name.
 *
 * NFSRDMA_BLOCK_EXISTS has the size of the block as its result, or -ENOENT.  NFSRDMA_BLOCK_REMOVE has 0 or -ENOENT, the
 * latter also if the server executed it, restarted, and got it again.
 *
 * Operations of a batch have no order.  Symbolic links are not followed: -ELOOP; a put replaces one that has the name of
 * the block, and a remove removes it.  The store keeps the file handles of directories, too: do not rename those.
 *
 * An operation that misses its deadline completes when the server can no longer reach its memory: if the server has a
 * part of it, the connection ends first, and what other operations have on it is sent again.  The store needs no reply
 * for that.
 *
 * Return: number of operations that the store took, from the first one on; -EAGAIN if that is 0 because as many as
 * options.in_flight, and at least 256, are unfinished or not yet reported; -EINVAL if the first one is none; or another
 * negative errno value.
 */
int nfsrdma_blocks_submit(struct nfsrdma_blocks *blocks, const struct nfsrdma_block *operations, size_t count,
			  uint32_t deadline, uint64_t *batch);

/**
 * nfsrdma_blocks_wait - wait for completions of a store
 * @blocks: a store
 * @completions: array; @eof of its elements is 0
 * @count: elements of the array
 * @min: completions to wait for; fewer are returned if fewer are unfinished, or after @timeout; 0: those that have
 *	arrived
 * @timeout: milliseconds; -1 for no limit
 *
 * Return: number of completions, or a negative errno value.
 */
int nfsrdma_blocks_wait(struct nfsrdma_blocks *blocks, struct nfsrdma_completion *completions, size_t count,
			size_t min, int timeout);

/**
 * nfsrdma_blocks_cancel - end the operations of a batch
 * @blocks: a store
 * @batch: number from nfsrdma_blocks_submit()
 *
 * Those that are unfinished complete with -ECANCELED: nfsrdma_blocks_wait() has their completions without a wait.  The
 * server reaches no memory of theirs when the call returns, see nfsrdma_blocks_submit().
 *
 * Return: number of operations that were canceled, or a negative errno value.
 */
int nfsrdma_blocks_cancel(struct nfsrdma_blocks *blocks, uint64_t batch);

/**
 * nfsrdma_blocks_fd - get a file descriptor for poll(2)
 * @blocks: a store
 *
 * The descriptor is readable when nfsrdma_blocks_wait() may have something to do, at a deadline, too.  The store owns
 * it.
 *
 * Return: file descriptor, or a negative errno value.
 */
int nfsrdma_blocks_fd(struct nfsrdma_blocks *blocks);

#ifdef __cplusplus
}
#endif

#endif
