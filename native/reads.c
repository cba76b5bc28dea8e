/* Which variables are read while the warm parent imports its modules (src/carpool/agent/warm), and whether files are
 * what they were. It is preloaded into that parent only. The programs that the parent forks have it too: there it
 * counts what a program did to the world, as one that did nothing can be started again.
 *
 * Threads: any thread may call getenv. Lock: none; a name is copied into bytes that one fetch-and-add made its own. A
 *   name that finds no room is counted, and the parent then serves nobody.
 *
 * Not seen: what the C library reads for itself (LC_*, TZ, LD_*, MALLOC_*) and who walks through `environ`, as some
 * versions of libgomp do. Those are compared by their prefixes (wire/warm.py). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define EXPORT __attribute__((visibility("default")))
#define ROOM (1 << 16)

static char cp_names[ROOM]; /* one behind the other, each ended by a newline */
static atomic_size_t cp_used;
static atomic_bool cp_is_over;

extern char **environ;

/* Not the C library's own: looking that up may call us. */
static char *cp_find(const char *name) {
    size_t length = strlen(name);
    for (char **each = environ; length && each && *each; each++)
        if (!strncmp(*each, name, length) && (*each)[length] == '=')
            return *each + length + 1;
    return NULL;
}

static void cp_note(const char *name) {
    if (!name || atomic_load_explicit(&cp_is_over, memory_order_relaxed))
        return;
    size_t length = strlen(name), start = atomic_fetch_add(&cp_used, length + 1);
    if (start + length + 1 > ROOM)
        return;
    memcpy(cp_names + start, name, length);
    cp_names[start + length] = '\n';
}

EXPORT char *getenv(const char *name) {
    cp_note(name);
    return cp_find(name);
}

EXPORT char *secure_getenv(const char *name) {
    static char *(*_Atomic real)(const char *);
    cp_note(name);
    if (!real)
        real = (char *(*)(const char *))dlsym(RTLD_NEXT, "secure_getenv");
    return real ? real(name) : NULL;
}

/* How many bytes of names there are until now. */
EXPORT size_t carpool_reads_so_far(void);
size_t carpool_reads_so_far(void) { return atomic_load(&cp_used); }

/* The names, each ended by a newline, and how many bytes they take; more than there is room if some are missing. From
 * then on nothing is noted. */
EXPORT const char *carpool_reads(size_t *bytes);
const char *carpool_reads(size_t *bytes) {
    atomic_store(&cp_is_over, true);
    *bytes = atomic_load(&cp_used);
    return cp_names;
}

/* Which of so many files is the first that is not as it was; `count` if all are. Paths end with zero; of each file
 * there are three words: when it was modified (ns), its size, its inode; -1 each if it was not there. Python would
 * count references to all of them, which copies their pages where the parent has children. */
EXPORT size_t carpool_first_changed(const char *paths, const int64_t *stamps, size_t count);
size_t carpool_first_changed(const char *paths, const int64_t *stamps, size_t count) {
    for (size_t i = 0; i < count; i++, paths += strlen(paths) + 1, stamps += 3) {
        struct stat now;
        if (stat(paths, &now)) {
            if (stamps[2] != -1)
                return i;
            continue;
        }
        int64_t at = (int64_t)now.st_mtim.tv_sec * 1000000000 + now.st_mtim.tv_nsec;
        if (at != stamps[0] || (int64_t)now.st_size != stamps[1] || (int64_t)now.st_ino != stamps[2])
            return i;
    }
    return count;
}

/* --- what a program did ------------------------------------------------------------------------------------------ */

static atomic_size_t cp_done;

/* How often this process has changed a directory or a file's name, made or emptied a file, spoken to another process or
 * changed its own directory. What it wrote and whom it started, the kernel counts. */
EXPORT size_t carpool_deeds(void);
size_t carpool_deeds(void) { return atomic_load(&cp_done); }

#define DEED(result, name, parameters, arguments)                                                                     \
    static result(*real_##name) parameters;                                                                           \
    EXPORT result name parameters {                                                                                   \
        atomic_fetch_add_explicit(&cp_done, 1, memory_order_relaxed);                                                 \
        if (!real_##name)                                                                                             \
            real_##name = (result(*) parameters)dlsym(RTLD_NEXT, #name);                                              \
        if (real_##name)                                                                                              \
            return real_##name arguments;                                                                             \
        errno = ENOSYS;                                                                                               \
        return -1;                                                                                                    \
    }

DEED(int, mkdir, (const char *path, mode_t mode), (path, mode))
DEED(int, mkdirat, (int at, const char *path, mode_t mode), (at, path, mode))
DEED(int, rmdir, (const char *path), (path))
DEED(int, unlink, (const char *path), (path))
DEED(int, unlinkat, (int at, const char *path, int flags), (at, path, flags))
DEED(int, rename, (const char *from, const char *to), (from, to))
DEED(int, renameat, (int at, const char *from, int into, const char *to), (at, from, into, to))
DEED(int, link, (const char *from, const char *to), (from, to))
DEED(int, linkat, (int at, const char *from, int into, const char *to, int flags), (at, from, into, to, flags))
DEED(int, symlink, (const char *from, const char *to), (from, to))
DEED(int, symlinkat, (const char *from, int into, const char *to), (from, into, to))
DEED(int, truncate, (const char *path, off_t length), (path, length))
DEED(int, ftruncate, (int file, off_t length), (file, length))
DEED(int, truncate64, (const char *path, off64_t length), (path, length))
DEED(int, ftruncate64, (int file, off64_t length), (file, length))
DEED(int, chmod, (const char *path, mode_t mode), (path, mode))
DEED(int, mkfifo, (const char *path, mode_t mode), (path, mode))
DEED(int, chdir, (const char *path), (path))
DEED(int, fchdir, (int file), (file))
DEED(int, connect, (int file, const struct sockaddr *to, socklen_t length), (file, to, length))
DEED(int, bind, (int file, const struct sockaddr *at, socklen_t length), (file, at, length))
DEED(int, kill, (pid_t pid, int number), (pid, number))

#define OPEN(name)                                                                                                    \
    static int (*real_##name)(const char *, int, ...);                                                                \
    EXPORT int name(const char *path, int flags, ...) {                                                               \
        mode_t mode = 0;                                                                                              \
        if (flags & (O_CREAT | O_TRUNC | __O_TMPFILE)) {                                                              \
            va_list rest;                                                                                             \
            va_start(rest, flags);                                                                                    \
            mode = va_arg(rest, mode_t);                                                                              \
            va_end(rest);                                                                                             \
            atomic_fetch_add_explicit(&cp_done, 1, memory_order_relaxed);                                             \
        }                                                                                                             \
        if (!real_##name)                                                                                             \
            real_##name = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);                                   \
        if (real_##name)                                                                                              \
            return real_##name(path, flags, mode);                                                                    \
        errno = ENOSYS;                                                                                               \
        return -1;                                                                                                    \
    }

OPEN(open)
OPEN(open64)
