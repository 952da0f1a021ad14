/* lowtide: regions of memory that may be larger than RAM. See lowtide(3).
 *
 * SYSTEM CALLS. A page that is out comes back when a thread touches it. When the kernel does, because memory of a region was given to
 * read(2), write(2), sendfile(2) or the like, the call fails with EFAULT, or moves fewer bytes than it was asked to. Hold
 * lowtide_resident() for the range during the call, or choose LOWTIDE_MONITOR, for which a privilege is needed.
 *
 * All functions may be called from any thread, at the same time, unless they say otherwise; none from a signal handler (memory of a
 * region may be touched in one). Those that return int return 0, or -1 with errno set and lowtide_error() saying what is wrong.
 */

#ifndef LOWTIDE_H
#define LOWTIDE_H

/* Made by cbindgen from crates/lowtide-c/src/lib.rs (make header): change that. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// The thread that touches a missing page brings it in, in a handler of SIGBUS. Needs no privilege.
#define LOWTIDE_IN_THREAD 0

// A thread of lowtide brings pages in, also during system calls. Needs a privilege: root,
// CAP_SYS_PTRACE, access to /dev/userfaultfd, or vm.unprivileged_userfaultfd=1.
#define LOWTIDE_MONITOR 1

// A thread of lowtide brings pages in, without privilege: for programs that can't have a handler
// of SIGBUS.
#define LOWTIDE_USER_MONITOR 2

// A range that stays in memory. Made by lowtide_resident().
typedef struct lowtide_guard lowtide_guard;

// A region. Made by lowtide_region_new().
typedef struct lowtide_region lowtide_region;

// Options of a region. Fill it with zeros first: zero members have their defaults.
typedef struct lowtide_options {
  // RAM limit in bytes, at least 16 MiB: resident and compressed pages and lowtide's tables.
  // Required without group_with.
  uint64_t ram;
  // "auto" (the default: compressed RAM, then an unnamed file in $LOWTIDE_DIR or /var/tmp),
  // "ram" (compressed RAM only), "dir:DIR[,size=8G]" (an unnamed file in DIR),
  // "redis://HOST:PORT" or "rediss://..." (a Valkey or Redis server or cluster).
  const char *swap;
  // Level of zstd (-7 to -1, 1 to 22); 0: LZ4.
  int zstd_level;
  // One of LOWTIDE_IN_THREAD (the default), LOWTIDE_MONITOR, LOWTIDE_USER_MONITOR.
  int delivery;
  // A region that shares its RAM limit and swap; the members above must be zero then.
  const struct lowtide_region *group_with;
} lowtide_options;

// Figures of a region and its group. Bytes, and pages of 4096 bytes.
typedef struct lowtide_stats {
  // The RAM limit.
  uint64_t ram_limit;
  // Memory that counts against it now.
  uint64_t ram_now;
  // Of that, lowtide's own: pool, staging, tables.
  uint64_t own_bytes;
  // Memory of the compressed pool.
  uint64_t pool_bytes;
  // Pages stored now, in the pool or in the swap file.
  uint64_t stored_pages;
  // Of those, in the swap file only.
  uint64_t file_pages;
  // Memory held by guards.
  uint64_t resident_bytes;
  // Touches of missing pages, and requests for them.
  uint64_t faults;
  // Evicted pages that came in again.
  uint64_t pages_in;
  // Evicted pages.
  uint64_t pages_out;
  // Nanoseconds of the longest fault.
  uint64_t longest_fault_ns;
} lowtide_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// This thread's latest error in one line: what is wrong and what to do; empty without one. Valid
// until the next error.
const char *lowtide_error(void);

// Makes a region of len bytes, all zero. NULL on failure, with errno: EINVAL (a wrong len or
// option: zero, no RAM limit or less than 16 MiB, an unknown swap, level or delivery), ENOMEM (no
// address space for len), EPERM or EACCES (no privilege for LOWTIDE_MONITOR, or a filter forbids
// userfaultfd), ENOSYS (no userfaultfd in this kernel), ENOTSUP (the program runs under `lowtide
// run`), ECHILD (group_with is a parent process's), or another one from the kernel.
//
// # Safety
// options points to a struct lowtide_options whose pointers are NULL or valid.
struct lowtide_region *lowtide_region_new(size_t len, const struct lowtide_options *options);

// Frees a region, whose memory must not be touched any more. Ignores NULL. -1 with errno EBUSY,
// and nothing freed, while the region has guards.
//
// # Safety
// region is NULL or a live region, and no other thread uses it or its memory.
int lowtide_region_free(struct lowtide_region *region);

// The first byte of a region, page-aligned. Valid until the region is freed.
//
// # Safety
// region is a region.
void *lowtide_region_data(const struct lowtide_region *region);

// Bytes of a region.
//
// # Safety
// region is a region.
size_t lowtide_region_len(const struct lowtide_region *region);

// Sets the RAM limit, in bytes, of a region and its group. A lower one takes effect gradually.
// Errors: EINVAL (less than 16 MiB, or than twice the memory held by guards), ECHILD (a parent
// process's region).
//
// # Safety
// region is a region.
int lowtide_set_ram(const struct lowtide_region *region, uint64_t bytes);

// Writes a region's figures to stats. Errors: ECHILD (a parent process's region).
//
// # Safety
// region is a region, and stats points to a struct lowtide_stats.
int lowtide_get_stats(const struct lowtide_region *region, struct lowtide_stats *stats);

// Brings in the missing pages of a range: a hint. Errors: ERANGE (not in the region), EINVAL (no
// bytes), EIO (a page can't be read back), ECHILD (a parent process's region).
//
// # Safety
// region is a region.
int lowtide_prefetch(const struct lowtide_region *region, size_t offset, size_t len);

// Evicts the pages of a range now, except those that guards hold or no swap takes. Errors: ERANGE,
// EINVAL, ECHILD, as for lowtide_prefetch().
//
// # Safety
// region is a region.
int lowtide_evict(const struct lowtide_region *region, size_t offset, size_t len);

// Zeroes a range, and frees its memory and its room in swap. No other thread may use the range
// meanwhile. Errors: ERANGE, EINVAL, ECHILD, as for lowtide_prefetch(); EBUSY: a guard holds some
// of it.
//
// # Safety
// region is a region.
int lowtide_drop(const struct lowtide_region *region, size_t offset, size_t len);

// Holds a range in memory until lowtide_guard_free(), for system calls and devices. Guards hold at
// most half of the RAM limit. NULL on failure, with errno: ENOBUFS (that would be more), ERANGE,
// EINVAL, EIO, ECHILD, as for lowtide_prefetch().
//
// # Safety
// region is a region.
struct lowtide_guard *lowtide_resident(const struct lowtide_region *region, size_t offset, size_t len);

// Permits a range's eviction again. Ignores NULL.
//
// # Safety
// guard is NULL or a live guard.
void lowtide_guard_free(struct lowtide_guard *guard);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LOWTIDE_H */
