/* The stand-in cards' books: one file that every process maps, so that all of them see the same cards.
 *
 * Bytes are what each process holds on each card; the time line is when a card will be idle. A process's row is
 * his while he lives: rows of the dead are cleared by whoever looks next. The file lock (flock) guards rows and
 * bytes; the kernel drops it with its holder. Time lines are atomics.
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
#define BOOKS_MAGIC 0x42554C5354415244ull /* another one for another layout */

struct card_row {
    uint64_t bytes, peak;
    _Atomic uint64_t busy_ns, launches;
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
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

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

static struct books *books;
static int books_fd = -1;

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
    if (books && (books->magic != BOOKS_MAGIC || getenv("CARPOOL_STUB"))) {
        books->cards = cards;
        books->card_bytes = bytes;
        books->magic = BOOKS_MAGIC;
    }
    books_unlock();
    return books != NULL;
}

/* With the lock held. */
static void books_bury(void) {
    for (unsigned r = 0; r < ROWS; r++)
        if (books->row[r].pid && birth_of(books->row[r].pid) != books->row[r].birth)
            memset(&books->row[r], 0, sizeof books->row[r]);
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
