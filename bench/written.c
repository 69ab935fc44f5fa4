/* Counts the bytes that this process writes to files below a directory, and the calls that write them.
 *
 * Loaded by LD_PRELOAD. XPU_WRITTEN_COUNT names a file of two 64-bit numbers, bytes and calls, which all
 * processes add to; XPU_WRITTEN_BELOW names the directory, as the kernel writes the path. Logs (*.log) are
 * left out. Without either variable nothing is counted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

static uint64_t *count;
static char below[PATH_MAX];
static size_t length;

__attribute__((constructor)) static void begin(void) {
  const char *file = getenv("XPU_WRITTEN_COUNT"), *directory = getenv("XPU_WRITTEN_BELOW");
  if (!file || !directory || strlen(directory) >= sizeof below) return;
  strcpy(below, directory);
  length = strlen(below);
  int descriptor = open(file, O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return;
  void *shared = mmap(NULL, 2 * sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (shared != MAP_FAILED) count = shared;
  close(descriptor);
}

static ssize_t counted(int descriptor, ssize_t written) {
  if (!count || written <= 0) return written;
  int before = errno;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size > 0) {
    path[size] = 0;
    int log = size > 4 && !strcmp(path + size - 4, ".log");
    if (!log && !strncmp(path, below, length) && path[length] == '/') {
      __atomic_fetch_add(&count[0], (uint64_t)written, __ATOMIC_RELAXED);
      __atomic_fetch_add(&count[1], 1, __ATOMIC_RELAXED);
    }
  }
  errno = before;
  return written;
}

/* CALL(NAME, PARAMETERS, ARGUMENTS): the call of that name to the descriptor `to`, counted. */
#define CALL(name, parameters, ...)                                \
  PUBLIC ssize_t name parameters {                                 \
    static ssize_t(*next) parameters;                              \
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);          \
    return counted(to, next(__VA_ARGS__));                         \
  }

CALL(write, (int to, const void *data, size_t size), to, data, size)
CALL(writev, (int to, const struct iovec *parts, int number), to, parts, number)
CALL(pwrite, (int to, const void *data, size_t size, off_t at), to, data, size, at)
CALL(pwrite64, (int to, const void *data, size_t size, off64_t at), to, data, size, at)
CALL(pwritev, (int to, const struct iovec *parts, int number, off_t at), to, parts, number, at)
CALL(pwritev64, (int to, const struct iovec *parts, int number, off64_t at), to, parts, number, at)
CALL(pwritev2, (int to, const struct iovec *parts, int number, off_t at, int how), to, parts, number, at, how)
CALL(pwritev64v2, (int to, const struct iovec *parts, int number, off64_t at, int how), to, parts, number, at, how)
CALL(sendfile, (int to, int from, off_t *at, size_t size), to, from, at, size)
CALL(sendfile64, (int to, int from, off64_t *at, size_t size), to, from, at, size)
CALL(copy_file_range, (int from, off64_t *read_at, int to, off64_t *at, size_t size, unsigned how), from, read_at, to,
     at, size, how)
