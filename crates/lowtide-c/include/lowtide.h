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

// A thread of lowtide brings it in, also where a system call needs it. Needs a privilege: root, CAP_SYS_PTRACE, access to
// /dev/userfaultfd, or vm.unprivileged_userfaultfd=1.
#define LOWTIDE_MONITOR 1

// A thread of lowtide brings it in, without privilege: for programs that can't have a handler of SIGBUS.
#define LOWTIDE_USER_MONITOR 2

// A range that stays in memory. Made by lowtide_resident().
typedef struct lowtide_guard lowtide_guard;

// A region. Made by lowtide_region_new().
typedef struct lowtide_region lowtide_region;

// What a region is to be. Fill it with zeros and set what is needed: members that are zero have their defaults.
typedef struct lowtide_options {
  // RAM limit in bytes, 16 MiB at least: pages in memory, compressed ones, and lowtide's tables for them. Required, unless
  // group_with is set.
  uint64_t ram;
  // "auto" (the default: compressed RAM, then an unnamed file in $LOWTIDE_DIR or /var/tmp), "ram" (compressed RAM only),
  // "dir:DIR[,size=8G]" (an unnamed file in DIR), or "redis://HOST:PORT" or "rediss://..." (a Valkey or Redis server or
  // cluster, as lowtide run has it).
  const char *swap;
  // Level of zstd (-7 to -1, 1 to 22); 0: LZ4.
  int zstd_level;
  // One of LOWTIDE_IN_THREAD (the default), LOWTIDE_MONITOR, LOWTIDE_USER_MONITOR.
  int delivery;
  // A region with which to share the RAM limit and the swap; the members above are to be zero then.
  const struct lowtide_region *group_with;
} lowtide_options;

// Figures of a region and of those that share its limit. Bytes, and pages of 4096 bytes.
typedef struct lowtide_stats {
  // The RAM limit.
  uint64_t ram_limit;
  // What counts against it now.
  uint64_t ram_now;
  // Of that, lowtide's own: pool, staging, tables.
  uint64_t own_bytes;
  // Memory of the compressed pool.
  uint64_t pool_bytes;
  // Pages that are stored now, in the pool or in the swap file.
  uint64_t stored_pages;
  // Of those, in the swap file only.
  uint64_t file_pages;
  // What guards keep in memory.
  uint64_t resident_bytes;
  // Times that a thread touched a missing page, or asked for it.
  uint64_t faults;
  // Evicted pages that came in again.
  uint64_t pages_in;
  // Pages that were evicted.
  uint64_t pages_out;
  // Nanoseconds of the fault that took longest.
  uint64_t longest_fault_ns;
} lowtide_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Says in one line what was wrong and what to do, of the latest call that failed in this thread. Empty if none did. Valid
// until the next call of this thread that fails.
const char *lowtide_error(void);

// Makes a region of len bytes, all zero. NULL on failure, with errno:
// EINVAL (len or an option is wrong: zero, no RAM limit or less than 16 MiB, an unknown swap, level or delivery), ENOMEM
// (there is no address space for len), EPERM or EACCES (no privilege for LOWTIDE_MONITOR, or a filter forbids userfaultfd),
// ENOSYS (no userfaultfd in this kernel), ENOTSUP (the program runs under `lowtide run`), ECHILD (group_with is a parent
// process's), or another one from the kernel.
//
// # Safety
// options points to a struct lowtide_options whose pointers are NULL or valid.
struct lowtide_region *lowtide_region_new(size_t len,
                                          const struct lowtide_options *options);

// Frees a region: its memory must not be touched any more. NULL is freed by doing nothing. -1 with errno EBUSY, and nothing
// freed: guards of it live.
//
// # Safety
// region is NULL or a region that was not freed, and no other thread uses it or its memory.
int lowtide_region_free(struct lowtide_region *region);

// The first byte of a region. Page-aligned. Valid until the region is freed.
//
// # Safety
// region is a region.
void *lowtide_region_data(const struct lowtide_region *region);

// Bytes of a region.
//
// # Safety
// region is a region.
size_t lowtide_region_len(const struct lowtide_region *region);

// Changes the RAM limit, in bytes, of a region and of those that share it. A lower one is reached by and by. Errors: EINVAL
// (less than 16 MiB, or than twice what guards keep in memory), ECHILD (a parent process's region).
//
// # Safety
// region is a region.
int lowtide_set_ram(const struct lowtide_region *region,
                    uint64_t bytes);

// Writes the figures of a region to stats. Errors: ECHILD (a parent process's region).
//
// # Safety
// region is a region, and stats points to a struct lowtide_stats.
int lowtide_get_stats(const struct lowtide_region *region, struct lowtide_stats *stats);

// Brings in the pages of a range that are out: a hint. Errors: ERANGE (not in the region), EINVAL (no bytes), EIO (a page
// can't be read back), ECHILD (a parent process's region).
//
// # Safety
// region is a region.
int lowtide_prefetch(const struct lowtide_region *region,
                     size_t offset,
                     size_t len);

// Evicts the pages of a range now, but for what guards keep in memory and what no swap takes. Errors: ERANGE, EINVAL, ECHILD,
// as for lowtide_prefetch().
//
// # Safety
// region is a region.
int lowtide_evict(const struct lowtide_region *region,
                  size_t offset,
                  size_t len);

// Sets a range to zeros, and gives its memory and its room in swap back. No other thread may use the range meanwhile. Errors:
// ERANGE, EINVAL, ECHILD, as for lowtide_prefetch(); EBUSY: a guard keeps some of it in memory.
//
// # Safety
// region is a region.
int lowtide_drop(const struct lowtide_region *region,
                 size_t offset,
                 size_t len);

// Brings a range into memory and keeps it there until lowtide_guard_free(): for system calls and devices. At most half of the
// RAM limit stays in memory by guards. NULL on failure, with errno: ENOBUFS (that would be more), ERANGE, EINVAL, EIO, ECHILD,
// as for lowtide_prefetch().
//
// # Safety
// region is a region.
struct lowtide_guard *lowtide_resident(const struct lowtide_region *region,
                                       size_t offset,
                                       size_t len);

// Lets a range be evicted again. NULL is freed by doing nothing.
//
// # Safety
// guard is NULL or a guard that was not freed.
void lowtide_guard_free(struct lowtide_guard *guard);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LOWTIDE_H */
