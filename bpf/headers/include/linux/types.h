/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Types of bcc's headers, of the probe sets, and of the members of event
 * records. Their widths are the same on all 64-bit architectures.
 */
#ifndef NFSRDMA_PROBES_TYPES_H
#define NFSRDMA_PROBES_TYPES_H

#if __SIZEOF_LONG__ != 8
#error "probe sets need a 64-bit kernel"
#endif

typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

typedef s8 __s8;
typedef s16 __s16;
typedef s32 __s32;
typedef s64 __s64;
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;

typedef s32 int32_t;
typedef s64 int64_t;
typedef u8 uint8_t;
typedef u16 uint16_t;
typedef u32 uint32_t;
typedef u64 uint64_t;

/* byte order and checksums; the compiler does not distinguish them */
typedef u16 __le16, __be16, __sum16;
typedef u32 __le32, __be32, __wsum;
typedef u64 __le64, __be64;
typedef u64 __aligned_u64 __attribute__((aligned(8)));

typedef _Bool bool;
typedef unsigned long size_t, uintptr_t;
typedef long ssize_t, ptrdiff_t;

/* members of event records, read or not */
typedef int pid_t;
typedef unsigned int uid_t, gid_t, dev_t, gfp_t;
typedef unsigned short umode_t;
typedef unsigned long pgoff_t, ino_t;
typedef long long loff_t, time64_t, ktime_t;
typedef u64 sector_t;

enum { false, true };

#define NULL			((void *)0)
#define __always_inline		inline __attribute__((always_inline))
#define __maybe_unused		__attribute__((unused))

#endif
