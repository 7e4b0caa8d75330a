/* Fails writes and flushes of a process's log files; loaded with LD_PRELOAD. Faults happen only while the file named by
 * FAULTS_ON exists. FAULTS_MATCH: a part of the paths that fail; FAULTS_RATE: the probability of a fault per call;
 * FAULTS_LOG: a file that gets a line per fault. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static __thread unsigned int seed = 0;

static double chance(void) {
    if (!seed) seed = (unsigned)time(0) ^ (unsigned)syscall(SYS_gettid) * 7919u;
    return rand_r(&seed) / (double)RAND_MAX;
}

static int concerns(int file) {
    char link[64], path[512];
    const char *on = getenv("FAULTS_ON"), *match = getenv("FAULTS_MATCH");
    if (!on || !match || access(on, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strstr(path, match) != 0;
}

static int fails(int file, const char *what) {
    const char *rate = getenv("FAULTS_RATE"), *log = getenv("FAULTS_LOG");
    if (!rate || chance() >= atof(rate) || !concerns(file)) return 0;
    FILE *output = log ? fopen(log, "a") : 0;
    if (output) {
        fprintf(output, "%d %s\n", getpid(), what);
        fclose(output);
    }
    return 1;
}

#define REAL(name) dlsym(RTLD_NEXT, name)

int fsync(int file) {
    static int (*real)(int);
    if (!real) real = REAL("fsync");
    if (fails(file, "fsync: EIO")) return errno = EIO, -1;
    return real(file);
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = REAL("fdatasync");
    if (fails(file, "fdatasync: slow")) usleep(500000 + (int)(chance() * 2000000));
    if (fails(file, "fdatasync: EIO")) return errno = EIO, -1;
    return real(file);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real) real = REAL("pwrite");
    if (fails(file, "pwrite: ENOSPC")) return errno = ENOSPC, -1;
    return real(file, data, size, at);
}

/* Half of the first buffer, or nothing. */
static ssize_t cut(int file, const struct iovec *parts, int count, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real) real = REAL("pwrite");
    if (chance() < 0.5 && count > 0 && parts[0].iov_len > 2) return real(file, parts[0].iov_base, parts[0].iov_len / 2, at);
    return errno = ENOSPC, -1;
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at) {
    static ssize_t (*real)(int, const struct iovec *, int, off_t);
    if (!real) real = REAL("pwritev");
    return fails(file, "pwritev: short or ENOSPC") ? cut(file, parts, count, at) : real(file, parts, count, at);
}

ssize_t pwritev2(int file, const struct iovec *parts, int count, off_t at, int flags) {
    static ssize_t (*real)(int, const struct iovec *, int, off_t, int);
    if (!real) real = REAL("pwritev2");
    return fails(file, "pwritev2: short or ENOSPC") ? cut(file, parts, count, at) : real(file, parts, count, at, flags);
}

ssize_t pwrite64(int file, const void *data, size_t size, off_t at) { return pwrite(file, data, size, at); }
ssize_t pwritev64(int file, const struct iovec *parts, int count, off_t at) { return pwritev(file, parts, count, at); }
ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off_t at, int flags) {
    return pwritev2(file, parts, count, at, flags);
}
