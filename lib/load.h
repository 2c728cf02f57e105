/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The engine of `nfsrdma load`: many sessions of one process, with a load.
 *
 * This is an interface between the library and the command of the same version, and not for other programs: it may
 * change with each version.  libnfsrdma.map has its functions under NFSRDMA_PRIVATE.
 *
 * A load belongs to one thread at a time, with all of its sessions.
 */
#ifndef NFSRDMA_LOAD_H
#define NFSRDMA_LOAD_H

#include <stddef.h>
#include <stdint.h>

struct nfsrdma_session;
struct nfsrdma_load;

/* --- counts of values --- */

/**
 * struct nfsrdma_histogram - counts of values, which all fit; all zero: no values
 * @count: number of values
 * @least: the lowest one
 * @most: the highest one
 * @sum: their sum
 * @slots: see histogram.c
 */
struct nfsrdma_histogram {
	uint64_t count;
	uint64_t least;
	uint64_t most;
	double sum;
	uint64_t slots[14592];
};

/* Count a value */
void nfsrdma_histogram_record(struct nfsrdma_histogram *histogram, uint64_t value);

/* Add the values of another histogram */
void nfsrdma_histogram_add(struct nfsrdma_histogram *histogram, const struct nfsrdma_histogram *other);

/* The value that @parts of 100,000 values do not exceed; less than 1/256 too high, never too low; 0 without values */
uint64_t nfsrdma_histogram_percentile(const struct nfsrdma_histogram *histogram, uint32_t parts);

/* --- a load --- */

/* Kinds of operations; the library lists directories by READDIRPLUS */
enum nfsrdma_load_kind {
	NFSRDMA_LOAD_NULL,
	NFSRDMA_LOAD_GETATTR,
	NFSRDMA_LOAD_READ,
	NFSRDMA_LOAD_WRITE,
	NFSRDMA_LOAD_READDIR,
};

/**
 * struct nfsrdma_load_plan - what a load does
 * @sessions: number of sessions
 * @depth: most unfinished operations of a session
 * @inline_size: bytes of a message, see struct nfsrdma_options
 * @timeout: milliseconds, see struct nfsrdma_options
 * @at_once: sessions that connect at a time
 * @weights: of the kinds in the random mix
 * @bytes: of a READ or WRITE, a multiple of 8
 * @sequential: 1 for offsets in ascending order, 0 for random ones
 * @stable: 1 for WRITEs to stable storage (DATA_SYNC)
 * @verify: 1 to compare the data of READs with nfsrdma_load_pattern()
 * @queue: arrivals that a session keeps until it may send them
 * @rate: arrivals per second of all sessions of this load (open loop); 0: a session sends the next operation
 *	when one has ended and @think is over (closed loop)
 * @think: mean seconds of the time between an operation and the next one
 * @in_flight: of a closed loop, unfinished operations of all sessions; the next operation is that of a random
 *	session.  0: of the session whose operation has ended
 * @seed: of all random numbers, and of the pattern
 */
struct nfsrdma_load_plan {
	uint32_t sessions;
	uint32_t depth;
	uint32_t inline_size;
	uint32_t timeout;
	uint32_t at_once;
	uint32_t weights[5];
	uint32_t bytes;
	uint32_t sequential;
	uint32_t stable;
	uint32_t verify;
	uint32_t queue;
	double rate;
	double think;
	uint32_t in_flight;
	uint64_t seed;
};

/**
 * struct nfsrdma_load_limits - what each session needs, and what the device has; 0: unknown
 * @locked: bytes of locked memory of a session, without what the device's driver needs
 * @descriptors: open files of a session
 * @qps: queue pairs of the device
 * @cqs: completion queues
 * @mrs: memory regions, of which a session has three
 * @pds: protection domains
 */
struct nfsrdma_load_limits {
	uint64_t locked;
	uint64_t descriptors;
	uint64_t qps;
	uint64_t cqs;
	uint64_t mrs;
	uint64_t pds;
};

/**
 * struct nfsrdma_load_totals - what a load did since nfsrdma_load_start()
 * @done: operations that ended without an error, by kind
 * @failed: operations that ended with one, by kind
 * @bytes: read or written, by kind
 * @short_moves: READs and WRITEs that moved fewer bytes than requested
 * @mismatches: READs whose data was not the pattern
 * @arrivals: operations that were due, with a rate
 * @dropped: arrivals that found the queue of their session full
 * @unsent: arrivals that waited in a queue at the end
 * @unfinished: operations that have no reply, and arrivals in queues
 * @connected: sessions that have connected at least once
 * @up: sessions that are connected now
 * @failures: attempts to connect that failed
 * @lost: connections that ended
 * @reconnects: connections made again
 * @connect_ns: from the first attempt until all sessions were connected; 0: they were not
 * @outages: groups of lost connections, with less than a second between them
 * @recovery_ns: the longest time from the first loss of an outage until all sessions were connected again
 * @resent: calls that were sent again
 * @errors: negative errno values of failed operations
 * @error_counts: of each of them; the last one counts all others
 * @message: the last failure of a connection, as text
 * @mismatch: the first READ with wrong data, as text
 */
struct nfsrdma_load_totals {
	uint64_t done[5];
	uint64_t failed[5];
	uint64_t bytes[5];
	uint64_t short_moves;
	uint64_t mismatches;
	uint64_t arrivals;
	uint64_t dropped;
	uint64_t unsent;
	uint64_t unfinished;
	uint64_t connected;
	uint64_t up;
	uint64_t failures;
	uint64_t lost;
	uint64_t reconnects;
	uint64_t connect_ns;
	uint64_t outages;
	uint64_t recovery_ns;
	uint64_t resent;
	int32_t errors[8];
	uint64_t error_counts[8];
	char message[256];
	char mismatch[256];
};

/* Histograms of a load, in nanoseconds */
enum nfsrdma_load_times {
	/* by kind, from when the operation was due to its end; with a rate, the wait in the queue is part of it */
	NFSRDMA_LOAD_RESPONSE = 0,
	/* by kind, from when the library got it to its end */
	NFSRDMA_LOAD_SERVICE = 5,
	/* as RESPONSE, of all kinds, since nfsrdma_load_interval() */
	NFSRDMA_LOAD_INTERVAL = 10,
	/* from when an arrival was due to when the load saw that: it has too little CPU time if that is long */
	NFSRDMA_LOAD_LATE = 11,
	/* of first connections */
	NFSRDMA_LOAD_CONNECT = 12,
	/* from the loss of a connection to the next one */
	NFSRDMA_LOAD_OUTAGE = 13,
};

/* The pattern of a load's file: @buf gets the @length bytes from @offset, both multiples of 8 */
void nfsrdma_load_pattern(uint64_t seed, uint32_t file, void *buf, size_t length, uint64_t offset);

/* A random time with an exponential distribution; @state is that of the generator, and changes */
double nfsrdma_load_gap(uint64_t *state, double mean);

/**
 * nfsrdma_load_open - prepare a load
 * @session: a session with the server and the directory of @paths, which stays open as long as the load
 * @plan: what to do
 * @paths: files to read and write, session n uses the one of number n modulo @count
 * @count: elements of @paths; 0 for a mix without READ, WRITE and GETATTR
 * @directory: path of the directory that READDIR lists; NULL for a mix without it
 * @load: the load, without a connection
 *
 * Return: 0, or a negative errno value.
 */
int nfsrdma_load_open(struct nfsrdma_session *session, const struct nfsrdma_load_plan *plan, const char *const *paths,
		      size_t count, const char *directory, struct nfsrdma_load **load);

/* Get what sessions need, and what the device has; returns 0, or a negative errno value */
int nfsrdma_load_limits(const struct nfsrdma_load *load, struct nfsrdma_load_limits *limits);

/* Connect for at most @ms milliseconds; returns the number of sessions that have connected, or an errno value */
int nfsrdma_load_connect(struct nfsrdma_load *load, uint32_t ms);

/* Set all counts to 0, but those of connections, and begin operations if that has not been done */
void nfsrdma_load_start(struct nfsrdma_load *load);

/* Begin no more operations */
void nfsrdma_load_stop(struct nfsrdma_load *load);

/* Work for @ms milliseconds, or until nothing is unfinished after nfsrdma_load_stop(); returns 0 or an errno value */
int nfsrdma_load_run(struct nfsrdma_load *load, uint32_t ms);

/* Get what the load did */
void nfsrdma_load_totals(const struct nfsrdma_load *load, struct nfsrdma_load_totals *totals);

/* Get the operations without an error of session @number; -1: it was not connected at the start */
int64_t nfsrdma_load_operations(const struct nfsrdma_load *load, uint32_t number);

/* Get a histogram, see enum nfsrdma_load_times; it belongs to the load */
const struct nfsrdma_histogram *nfsrdma_load_histogram(const struct nfsrdma_load *load, uint32_t which);

/* Begin a new interval */
void nfsrdma_load_interval(struct nfsrdma_load *load);

/* Close all sessions, and free the load; NULL: nothing */
void nfsrdma_load_close(struct nfsrdma_load *load);

#endif
