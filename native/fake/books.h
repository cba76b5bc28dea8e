/* The stand-in cards' books: one file that every process maps, so that all of them see the same cards.
 *
 * Bytes are what each process holds on each card; the time line is when a card will be idle. A process's row is
 * his while he lives: rows of the dead are cleared by whoever looks next, and what they had on the time line is skipped.
 * The file lock (flock) guards rows and bytes; the kernel drops it with its holder. Time lines are atomics.
 *
 * CARPOOL_STUB=2x16GiB says how many cards of which size (1x16GiB if unset), CARPOOL_STUB_FILE where the file is,
 * CARPOOL_STUB_CONTEXT how many bytes a context takes (4MiB; real ones take some hundred). */
#ifndef CARPOOL_FAKE_BOOKS_H
#define CARPOOL_FAKE_BOOKS_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CARDS_MAX 16
#define ROWS 256
#define CONTEXT_BYTES (4ull << 20)
#define BOOKS_MAGIC 0x42554C5354415245ull /* another one for another layout */

struct card_row {
    uint64_t bytes, peak;
    _Atomic uint64_t busy_ns, launches;
    _Atomic uint64_t begin_ns, tail_ns; /* what it has on the time line now: from, until */
};

struct books {
    _Atomic uint64_t magic;
    uint64_t cards, card_bytes;
    _Atomic uint64_t idle_at_ns[CARDS_MAX], busy_ns[CARDS_MAX];
    struct {
        uint64_t pid, birth;
        struct card_row card[CARDS_MAX];
    } row[ROWS];
    _Atomic uint64_t faults[CARDS_MAX]; /* kernels that broke a context */
    _Atomic uint64_t skipped_ns[CARDS_MAX]; /* how far a card's clock is ahead: work of the dead that nobody waits for */
    _Atomic uint64_t looked_at_ns; /* when somebody who waits last looked for the dead */
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct books *books;
static int books_fd = -1;

/* The time on a card's time line. */
static uint64_t card_now_ns(unsigned card) { return now_ns() + atomic_load(&books->skipped_ns[card]); }

static uint64_t birth_of(uint64_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return 0;
    text[got] = 0;
    char *at = strrchr(text, ')');
    if (!at || at[2] == 'Z' || at[2] == 'X')
        return 0;
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

static uint64_t parse_size(const char *text, char **end) {
    uint64_t size = strtoull(text, end, 10);
    const char *units = "KMGT", *unit = **end ? strchr(units, **end) : NULL;
    if (unit) {
        size <<= 10 * (unit - units + 1);
        *end += (*end)[1] == 'i' ? 3 : 1;
    }
    return size;
}

/* The cards CARPOOL_STUB describes; false if it makes no sense. */
static bool read_shape(uint64_t *cards, uint64_t *bytes) {
    const char *text = getenv("CARPOOL_STUB");
    char *end;
    *cards = 1;
    *bytes = 16ull << 30;
    if (!text || !*text)
        return true;
    const char *times = strchr(text, 'x');
    if (times) {
        *cards = strtoull(text, &end, 10);
        if (end != times)
            return false;
        text = times + 1;
    }
    *bytes = parse_size(text, &end);
    return !*end && *bytes && *cards >= 1 && *cards <= CARDS_MAX;
}

static int books_open_fd(void) {
    char path[256];
    const char *given = getenv("CARPOOL_STUB_FILE");
    if (given)
        snprintf(path, sizeof path, "%s", given);
    else
        snprintf(path, sizeof path, "/dev/shm/carpool-stub-%u", (unsigned)geteuid());
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static bool books_lock(void) {
    int done;
    do
        done = flock(books_fd, LOCK_EX);
    while (done != 0 && errno == EINTR);
    return done == 0;
}

static void books_unlock(void) { flock(books_fd, LOCK_UN); }

/* Map the file, making it if nobody has. A file that holds other cards is made anew when none of its processes lives. */
static bool books_open(void) {
    uint64_t cards, bytes;
    if (books)
        return true;
    if (!read_shape(&cards, &bytes) || (books_fd = books_open_fd()) < 0 || !books_lock())
        return false;
    if (ftruncate(books_fd, sizeof(struct books)) == 0) {
        void *found = mmap(NULL, sizeof(struct books), PROT_READ | PROT_WRITE, MAP_SHARED, books_fd, 0);
        books = found == MAP_FAILED ? NULL : found;
    }
    if (books && books->magic && books->magic != BOOKS_MAGIC)
        memset(books, 0, sizeof *books); /* of another layout */
    if (books && (books->magic != BOOKS_MAGIC || getenv("CARPOOL_STUB"))) {
        books->cards = cards;
        books->card_bytes = bytes;
        books->magic = BOOKS_MAGIC;
    }
    books_unlock();
    return books != NULL;
}

/* With the lock held: the card is idle when the last living process's work is done, and goes on at once with the first
 * one's. Where the work of a living process lies between the dead one's, all of it stays until the living one's end. */
static void books_close_gaps(unsigned card) {
    uint64_t now, first, last, idle;
    do {
        now = last = card_now_ns(card);
        first = UINT64_MAX;
        for (unsigned r = 0; r < ROWS; r++) {
            struct card_row *own = &books->row[r].card[card];
            if (!books->row[r].pid || own->tail_ns <= now)
                continue;
            last = own->tail_ns > last ? own->tail_ns : last;
            first = own->begin_ns < first ? own->begin_ns : first;
        }
        idle = atomic_load(&books->idle_at_ns[card]);
    } while (idle > last && !atomic_compare_exchange_strong(&books->idle_at_ns[card], &idle, last));
    uint64_t gone = idle > last ? idle - last : 0;
    if (last > now && first > now) {
        atomic_fetch_add(&books->skipped_ns[card], first - now);
        gone += first - now;
    }
    uint64_t busy = atomic_load(&books->busy_ns[card]);
    atomic_fetch_sub(&books->busy_ns[card], gone < busy ? gone : busy);
}

/* With the lock held: a process is no more, and its kernels end with it. */
static void books_end(unsigned r) {
    bool is_busy[CARDS_MAX];
    for (unsigned card = 0; card < CARDS_MAX; card++)
        is_busy[card] = books->row[r].card[card].tail_ns > card_now_ns(card);
    memset(&books->row[r], 0, sizeof books->row[r]);
    for (unsigned card = 0; card < CARDS_MAX; card++)
        if (is_busy[card])
            books_close_gaps(card);
}

/* With the lock held. */
static void books_bury(void) {
    for (unsigned r = 0; r < ROWS; r++)
        if (books->row[r].pid && birth_of(books->row[r].pid) != books->row[r].birth)
            books_end(r);
}

/* With the lock held: bytes all living processes hold on a card. */
static uint64_t books_used(unsigned card) {
    uint64_t used = 0;
    for (unsigned r = 0; r < ROWS; r++)
        used += books->row[r].pid ? books->row[r].card[card].bytes : 0;
    return used;
}

static void card_uuid(unsigned card, char out[16]) {
    memcpy(out, "carpool-stub-gpu", 16);
    out[15] = (char)card;
}

static void card_uuid_text(unsigned card, char text[64]) {
    char raw[16];
    card_uuid(card, raw);
    int at = snprintf(text, 64, "GPU-");
    for (int i = 0; i < 16; i++)
        at += snprintf(text + at, 64 - (size_t)at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                       (unsigned char)raw[i]);
}

#endif
