// Lets one process see another time of day, as on a machine whose clock is wrong. Loaded before the C library; the offset
// in nanoseconds is in the file that CLOCK_SKEW_FILE names, and may change at any time. Monotonic clocks are left alone.
// What waits until a time of day has to be told the true one: the kernel's clock is not skewed.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define FIRST_TIME_OF_DAY 1000000000  // seconds; what is less is a monotonic clock's

static const volatile int64_t *offset_ns;
static int (*true_clock_gettime)(clockid_t, struct timespec *);
static int (*true_cond_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*true_cnd_timedwait)(cnd_t *, mtx_t *, const struct timespec *);
static int (*true_sem_timedwait)(sem_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
    true_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    true_cond_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!true_cond_timedwait) true_cond_timedwait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    true_cnd_timedwait = dlsym(RTLD_NEXT, "cnd_timedwait");
    true_sem_timedwait = dlsym(RTLD_NEXT, "sem_timedwait");
    const char *path = getenv("CLOCK_SKEW_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) offset_ns = found;
    close(file);
}

static struct timespec shifted(struct timespec t, int sign) {
    int64_t by = offset_ns ? sign * *offset_ns : 0, ns = (int64_t)t.tv_sec * SECOND + t.tv_nsec + by;
    return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int failed = true_clock_gettime ? true_clock_gettime(clock, t) : (int)syscall(SYS_clock_gettime, clock, t);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) *t = shifted(*t, 1);
    return failed;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    (void)zone;
    struct timespec t;
    if (clock_gettime(CLOCK_REALTIME, &t)) return -1;
    *tv = (struct timeval){.tv_sec = t.tv_sec, .tv_usec = t.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *told) {
    struct timespec t;
    if (clock_gettime(CLOCK_REALTIME, &t)) return -1;
    if (told) *told = t.tv_sec;
    return t.tv_sec;
}

int timespec_get(struct timespec *t, int base) {
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, t) ? base : 0;
}

static struct timespec truly(const struct timespec *until) {
    return until->tv_sec < FIRST_TIME_OF_DAY ? *until : shifted(*until, -1);
}

int pthread_cond_timedwait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m, const struct timespec *restrict until) {
    struct timespec at = truly(until);
    return true_cond_timedwait(c, m, &at);
}

int cnd_timedwait(cnd_t *restrict c, mtx_t *restrict m, const struct timespec *restrict until) {
    struct timespec at = truly(until);
    return true_cnd_timedwait(c, m, &at);
}

int sem_timedwait(sem_t *restrict s, const struct timespec *restrict until) {
    struct timespec at = truly(until);
    return true_sem_timedwait(s, &at);
}
