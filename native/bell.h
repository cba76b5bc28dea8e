/* Handing a turn straight to the next job, and being handed one: the C part of src/carpool/agent/turns/bell.py, where the
 * rules stand. No Python in here, and nothing that blocks but bell_wait. */
#ifndef CARPOOL_BELL_H
#define CARPOOL_BELL_H

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "page.h"
#include "protocol.h"

typedef _Atomic uint64_t Word; /* every access is in the order written here */

struct bell {
    int peer, own; /* the connection to the daemon, and this process's bell; -1 is none */
    unsigned long long peer_inode, own_inode, line_inode; /* by which they are known, see bell_is */
    int line;      /* to the bell that was rung last, for nearly always it is the next one too: no name to look up */
    unsigned line_pid;
    uint64_t rung; /* serial of the newest grant that was rung; the daemon's own follows (B3) */
    int knocker;   /* the processor of whoever knocked last; -1 if it did not say */
    long pushed;   /* how often this thread had been pushed off its processor when it last knocked */
    char directory[sizeof(((struct sockaddr_un *)0)->sun_path) - 12]; /* of all bells, with room for a pid */
};

struct bell_sound { /* what a bell hears; the daemon's own has no more than the word */
    uint64_t pass, processor;
};

enum { BELL_SOON_NS = 1000000 }; /* a process that was knocked at stays awake so long (B4); a longer update is not worth a knock */
enum { BELL_PUSHED_MAX = 3 };    /* in a turn, stepping aside included; more, and others want the processor (B5) */

/* For a measurement only: CP_WITHOUT=knock,rehearse,aside leaves those out. */
static inline bool bell_without(const char *what)
{
    const char *left_out = getenv("CP_WITHOUT");
    return left_out != NULL && strstr(left_out, what) != NULL;
}

static inline int64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Whether this descriptor is still the socket that was opened: the program may have closed it and opened another one with
 * its number, which is not ours to use or to close. */
static inline bool bell_is(int fd, unsigned long long inode)
{
    struct stat facts;
    return fd >= 0 && fstat(fd, &facts) == 0 && S_ISSOCK(facts.st_mode) && facts.st_ino == inode;
}

static inline unsigned long long bell_inode(int fd)
{
    struct stat facts;
    return fd >= 0 && fstat(fd, &facts) == 0 ? facts.st_ino : 0;
}

static inline void bell_take_down(struct bell *bell)
{
    if (bell_is(bell->line, bell->line_inode))
        close(bell->line);
    bell->own = bell->line = -1;
}

static inline uint64_t bell_serial(uint64_t pass)
{
    return pass >> CP_PASS_SERIAL_SHIFT & CP_PASS_SERIAL_MASK;
}

static inline bool bell_send(int line, uint64_t pass)
{
    struct bell_sound sound = {pass, (uint64_t)sched_getcpu()};
    return send(line, &sound, sizeof sound, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof sound;
}

static inline bool bell_ring(struct bell *bell, unsigned pid, uint64_t pass)
{
    if (!bell_is(bell->line, bell->line_inode))
        bell->line = -1;
    if (bell->line >= 0 && bell->line_pid == pid && bell_send(bell->line, pass))
        return true;
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    int size = snprintf(where.sun_path, sizeof where.sun_path, "%s/%u", bell->directory, pid);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)size + 1);
    if (bell->line < 0) {
        bell->line = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        bell->line_inode = bell_inode(bell->line);
    }
    bell->line_pid = 0;
    if (connect(bell->line, (struct sockaddr *)&where, length) != 0)
        return false;
    bell->line_pid = pid;
    return bell_send(bell->line, pass);
}

/* Use the pass in this slot, if there is one, and ring the process it names; the pass, or 0. A process that could
 * not be rung hears it from the daemon, which must be told then. */
static inline uint64_t bell_pass_on(struct bell *bell, Word *slot, bool *is_rung)
{
    uint64_t pass = slot[CP_S_PASS];
    if (pass == 0 || pass & CP_PASSED || !bell_is(bell->own, bell->own_inode) || !bell_is(bell->peer, bell->peer_inode))
        return 0; /* what the program closed is found out by Python, which connects anew */
    slot[CP_S_BOUNDARY_NS] = (uint64_t)clock_ns(CLOCK_MONOTONIC); /* the daemon takes it for the time of this (B6) */
    if (!atomic_compare_exchange_strong(&slot[CP_S_PASS], &pass, pass | CP_PASSED))
        return 0;
    *is_rung = bell_ring(bell, (unsigned)(pass & (CP_PASS_SHARED - 1)), pass);
    return pass;
}

/* The kernel may have put whoever was woken on this very processor: let it run, so that it can step aside. Not where
 * other programs wait for this processor too: they would have it for a slice each (B5). */
static inline void bell_make_way(struct bell *bell)
{
    struct rusage used;
    if (bell_without("aside") || getrusage(RUSAGE_THREAD, &used) != 0)
        return;
    if (used.ru_nivcsw - bell->pushed <= BELL_PUSHED_MAX)
        sched_yield();
    bell->pushed = used.ru_nivcsw;
}

/* The last piece of a recalled turn begins: wake the process that has it next (B4). */
static inline void bell_knock(struct bell *bell, const Word *slot)
{
    uint64_t pass = slot[CP_S_PASS];
    if (bell->own >= 0 && pass != 0 && !(pass & CP_PASSED)
        && bell_ring(bell, (unsigned)(pass & (CP_PASS_SHARED - 1)), pass | CP_PASSED))
        bell_make_way(bell);
}

/* The pass that was rung and is offered in this slot, or 0; notes if there was a knock. Waits for nothing. */
static inline uint64_t bell_hear(struct bell *bell, Word *slot, bool *is_knocked)
{
    struct bell_sound sound = {0, 0};
    ssize_t got;
    if (!bell_is(bell->own, bell->own_inode))
        bell->own = -1;
    while (bell->own >= 0 && (got = recv(bell->own, &sound, sizeof sound, MSG_DONTWAIT)) >= (ssize_t)sizeof(Word)) {
        uint64_t offer = slot[CP_S_OFFER];
        if (sound.pass != 0 && sound.pass == offer) {
            slot[CP_S_OFFER] = 0;
            bell->rung = bell_serial(offer);
            return offer;
        }
        if (sound.pass == (offer | CP_PASSED)) {
            *is_knocked = true;
            bell->knocker = got == (ssize_t)sizeof sound ? (int)sound.processor : -1;
        }
    }
    return 0;
}

/* Off the processor of the one who knocked, which has its last piece of work to do there. The change of where the thread
 * may run is taken back at once (B5): by allowing it everything, if that is no more than it had, so that it follows when
 * the machine or its control group gets more processors, as before. */
static inline void bell_step_aside(const struct bell *bell)
{
    cpu_set_t all, others, any;
    if (bell_without("aside") || bell->knocker < 0 || bell->knocker != sched_getcpu() || sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    others = all;
    CPU_CLR((size_t)bell->knocker, &others);
    if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0)
        return;
    memset(&any, 0xff, sizeof any);
    bool is_any = sched_setaffinity(0, sizeof any, &any) == 0 && sched_getaffinity(0, sizeof any, &any) == 0;
    if (!is_any || !CPU_EQUAL(&any, &all))
        sched_setaffinity(0, sizeof all, &all);
}

/* After a knock: listens awake, for so long. */
static inline uint64_t bell_listen(struct bell *bell, Word *slot, int64_t for_ns)
{
    int64_t until = clock_ns(CLOCK_MONOTONIC) + for_ns;
    bool is_knocked = false;
    uint64_t pass;
    do
        pass = bell_hear(bell, slot, &is_knocked);
    while (pass == 0 && clock_ns(CLOCK_MONOTONIC) < until);
    return pass;
}

/* Tell the daemon that the turn went on by this pass and that another is wanted; false if it cannot be reached. */
static inline bool bell_say_passed(const struct bell *bell, uint64_t steps, uint64_t pass)
{
    struct cp_frame frame = {
        .kind = CP_M_RETURN,
        .word = {[CP_RETURN_STEPS] = steps, [CP_RETURN_WANTS_MORE] = true, [CP_RETURN_PASSED] = pass},
    };
    return bell_is(bell->peer, bell->peer_inode)
        && send(bell->peer, &frame, sizeof frame, MSG_NOSIGNAL) == (ssize_t)sizeof frame;
}

/* Drop the daemon's own grant of a turn that was rung; whether there was one to drop. */
static inline bool bell_drop_stale(const struct bell *bell)
{
    struct cp_frame frame;
    ssize_t got = recv(bell->peer, &frame, sizeof frame, MSG_PEEK | MSG_DONTWAIT);
    if (got != (ssize_t)sizeof frame || frame.kind != CP_M_GRANT)
        return false;
    uint64_t serial = frame.word[CP_GRANT_SERIAL];
    if (serial == 0 || serial > bell->rung) /* else of a turn that was rung, perhaps long ago */
        return false;
    return recv(bell->peer, &frame, sizeof frame, MSG_DONTWAIT) == (ssize_t)sizeof frame;
}

/* Until a turn is rung: true. False if there was a knock, the connection has something to read, a signal came, or it is
 * time to look whether one did. */
static inline bool bell_wait(struct bell *bell, Word *slot, bool *is_knocked)
{
    struct pollfd both[2] = {{.fd = bell->own, .events = POLLIN}, {.fd = bell->peer, .events = POLLIN}};
    *is_knocked = false;
    while (poll(both, 2, CP_BELL_LOOK_MS) > 0) {
        if (both[0].revents && bell_hear(bell, slot, is_knocked))
            return true;
        if (*is_knocked || bell->own < 0)
            return false;
        if (both[1].revents && (!bell_is(bell->peer, bell->peer_inode) || !bell_drop_stale(bell)))
            return false;
    }
    return false;
}

#endif
