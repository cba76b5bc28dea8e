/* The slots of the shared page (page.h) as a guest sees them: claiming one, adding all up, skipping the dead.
 * Included by one file of each library that is preloaded into a job.
 *
 * Threads: any. Lock: none; shared words are atomics, a slot belongs to the process that exchanged its pid into it (G2). */
#ifndef CARPOOL_SLOTS_H
#define CARPOOL_SLOTS_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "page.h"
#include "words.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* Linux 5.3, the same number on every machine; older kernels answer ENOSYS */
#endif
#define NOT_COUNTED "memory of this process is not counted"

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "words shared between processes must not hide a lock");

static uint64_t cp_flags; /* of a new slot of ours; its namespace is 0 where that is not known */
static cp_word *cp_page; /* NULL until the page has passed every check */

/* A stderr that is full or broken is left alone: writing would block the program or raise SIGPIPE in it. */
static void cp_say(const char *line) {
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&out, 1, 0) == 1 && out.revents == POLLOUT)
        (void)!write(STDERR_FILENO, line, strlen(line));
}

/* As pthread_atfork does it with glibc, but weak: a program with another C library starts with us all the same. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

static bool cp_follow_forks(void (*in_child)(void)) {
    return __register_atfork && __register_atfork(NULL, NULL, in_child, &__dso_handle) == 0;
}

static cp_word *cp_slot_at(unsigned slot) { return cp_page + (size_t)slot * CP_SLOT_WORDS; }

static void cp_raise(cp_word *word, int64_t value) {
    uint64_t seen = GET(*word);
    while ((int64_t)seen < value && !atomic_compare_exchange_weak(word, &seen, (uint64_t)value))
        ;
}

static bool cp_take(cp_word *slot, uint64_t from) {
    return atomic_compare_exchange_strong(&slot[CP_S_PID], &from, (uint64_t)getpid());
}

/* A pid means something only in its namespace. A slot without flags is being claimed or wiped. If the
 * process that did so was killed, its pid counts as one of ours; otherwise nobody would ever clear it. */
static bool cp_is_foreign(uint64_t flags) { return flags && (flags ^ cp_flags) >> CP_NAMESPACE_SHIFT; }

/* The pid goes last, so that nobody claims half-wiped words. The flags stay ours, also of a slot that nobody has
 * then: a process in another namespace leaves it alone meanwhile. How far its last process came stays, too: the daemon may
 * not have read it, and would take a smaller number for steps that were none. */
static void cp_wipe(cp_word *slot, uint64_t next_pid) {
    for (unsigned word = CP_S_PID + 1; word < CP_SLOT_WORDS; word++)
        if (next_pid || word != CP_S_STEPS)
            PUT(slot[word], word == CP_S_FLAGS ? cp_flags : 0);
    atomic_store(&slot[CP_S_PID], next_pid);
}

/* Killed but not yet waited for counts as gone: a zombie holds no memory, though kill still finds it. */
static bool cp_is_gone(uint64_t pid) {
    int saved = errno;
    bool gone = pid > INT_MAX || (kill((pid_t)pid, 0) != 0 && errno == ESRCH);
    struct pollfd process = {.fd = gone ? -1 : (int)syscall(SYS_pidfd_open, (pid_t)pid, 0), .events = POLLIN};
    if (process.fd >= 0) {
        gone = poll(&process, 1, 0) == 1;
        close(process.fd);
    }
    errno = saved;
    return gone;
}

/* A process in another namespace cannot tell whether this one lives, and leaves its slot alone. */
static bool cp_is_dead(cp_word *slot, uint64_t pid) { return !cp_is_foreign(GET(slot[CP_S_FLAGS])) && cp_is_gone(pid); }

/* Runs in the child of a threaded program too: system calls only, no allocation, no stdio. */
static cp_word *cp_claim_slot(void) { /* NULL: every slot is taken */
    uint64_t self = (uint64_t)getpid(), used = GET(cp_page[CP_H_SLOTS_USED]);
    cp_word *mine = NULL;
    struct stat facts;
    bool is_told = syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &facts, 0) == 0;
    cp_flags = CP_FLAG_METERED | (is_told ? (uint64_t)facts.st_ino << CP_NAMESPACE_SHIFT : 0);
    for (uint64_t s = (used < CP_FIRST_LENT ? used : CP_FIRST_LENT) - 1; s > 0 && used; s--) {
        if (GET(cp_slot_at(s)[CP_S_PID]) != self || cp_is_foreign(GET(cp_slot_at(s)[CP_S_FLAGS])))
            continue;
        if (mine) /* an exec stopped the clearing of a dead slot half-way; see cp_held */
            cp_wipe(mine, 0);
        mine = cp_slot_at(s);
    }
    for (unsigned s = 1; s < 2 * CP_FIRST_LENT && !mine; s++) { /* free ones first: system calls tell who is dead */
        cp_word *slot = cp_slot_at(s % CP_FIRST_LENT);
        uint64_t pid = GET(slot[CP_S_PID]);
        bool is_free = slot != cp_page && (pid == 0 || (s > CP_FIRST_LENT && cp_is_dead(slot, pid)));
        /* first the number, then the slot: a process killed in between is seen by those who bury */
        if (is_free && (cp_raise(&cp_page[CP_H_SLOTS_USED], s % CP_FIRST_LENT + 1), cp_take(slot, pid)))
            mine = slot;
    }
    if (!mine)
        return NULL;
    PUT(mine[CP_S_FLAGS], cp_flags); /* at once: until then a process in another namespace would take us for dead */
    cp_wipe(mine, self);
    return mine;
}

/* Bytes held by all processes of the job. A dead slot is taken over before it is wiped: otherwise a
 * process that claims it meanwhile would lose its count. The daemon alone clears the slots it lends. */
static uint64_t cp_held(bool bury_dead) {
    uint64_t held = 0, used = GET(cp_page[CP_H_SLOTS_USED]), lent = GET(cp_page[CP_H_LENT_USED]);
    for (unsigned s = 1; s < used || s < lent; s++) {
        if (s >= used && s < CP_FIRST_LENT)
            s = CP_FIRST_LENT;
        if (s >= CP_SLOTS)
            break;
        cp_word *slot = cp_slot_at(s);
        uint64_t pid = GET(slot[CP_S_PID]);
        if (pid == 0)
            continue;
        if (bury_dead && cp_is_dead(slot, pid)) {
            if (s < CP_FIRST_LENT && cp_take(slot, pid))
                cp_wipe(slot, 0);
            continue;
        }
        int64_t live = (int64_t)GET(slot[CP_S_LIVE]);
        held += live > 0 ? (uint64_t)live : 0;
    }
    return held;
}

/* SYS_fstat: the function has another version since glibc 2.33, and would not be found by an older one. */
static cp_word *cp_map_page(const char *path, const char **why) {
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat facts;
    void *page = MAP_FAILED;
    if (fd < 0 || syscall(SYS_fstat, fd, &facts) != 0)
        *why = strerror(errno);
    else if (!S_ISREG(facts.st_mode) || facts.st_uid != geteuid() || facts.st_mode & 077)
        *why = "the page is not a private file of this user";
    else if (facts.st_size < CP_PAGE_BYTES)
        *why = "the page is too short, restart the job";
    else if ((page = mmap(NULL, CP_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        *why = strerror(errno);
    if (fd >= 0)
        close(fd);
    if (page == MAP_FAILED)
        return NULL;
    cp_word *words = page;
    if (atomic_load(&words[CP_H_MAGIC]) == CP_MAGIC && GET(words[CP_H_LAYOUT]) == CP_LAYOUT)
        return words;
    *why = "the page is of another layout, restart the job";
    munmap(page, CP_PAGE_BYTES);
    return NULL;
}

#endif
