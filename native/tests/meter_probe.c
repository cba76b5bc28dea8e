/* A program for tests/native/test_meter.py to meter. Its buffers are static, so that what it holds is exactly
 * what the test told it to hold.
 *   meter_probe             one command a line on stdin, one reply "VALUE ERRNO" a line on stdout
 *   meter_probe hammer N    four threads allocate at random for N rounds while another forks; the slot must
 *                           agree with their own sums at every quiet point; exit 1 and a line on stderr if not
 *   meter_probe heir N      the same in a forked child, where the meter tells its own blocks from inherited ones
 *   meter_probe gentle N    the same, but the forked children allocate nothing: the allocators of Address- and
 *                           ThreadSanitizer may be locked for ever in the child of a threaded program
 *   meter_probe gentle-heir N   both
 * Threads: those of hammer; each owns its struct worker, main reads it after the join. Lock: none. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../page.h"
#include "../protocol.h"

#define BLOCKS 64
#define WORKERS 4
#define UNTOUCHED 77 /* errno before each call; a call that succeeds must leave it */

static void *blocks[BLOCKS];

static void *allocate(const char *how, void *old, size_t size) {
    void *block = NULL;
    if (strcmp(how, "malloc") == 0)
        return malloc(size);
    if (strcmp(how, "calloc") == 0)
        return calloc(size / 16, 16);
    if (strcmp(how, "posix_memalign") == 0) {
        int error = posix_memalign(&block, 64, size);
        if (error)
            errno = error;
        return error ? NULL : block;
    }
    if (strcmp(how, "aligned_alloc") == 0)
        return aligned_alloc(16, size); /* sizes here are multiples of 16, as C11 asks */
    if (strcmp(how, "memalign") == 0)
        return memalign(256, size);
    if (strcmp(how, "valloc") == 0)
        return valloc(size);
    if (strcmp(how, "pvalloc") == 0)
        return pvalloc(size);
    if (strcmp(how, "reallocarray") == 0)
        return reallocarray(old, size / 16, 16);
    return realloc(old, size);
}

/* Byte by byte, so that a forked child finds the next line where its parent stopped. */
static int read_line(char *line, size_t room) {
    size_t length = 0;
    while (length + 1 < room && read(STDIN_FILENO, line + length, 1) == 1)
        if (line[length++] == '\n') {
            line[length - 1] = 0;
            return 1;
        }
    return 0;
}

/* Not dprintf: it takes a buffer of a page from the heap and returns it after the line is out. */
static void reply(size_t value, int error) {
    char line[64];
    int length = snprintf(line, sizeof line, "%zu %d\n", value, error);
    if (write(STDOUT_FILENO, line, (size_t)length) != length)
        _exit(1);
}

static void obey(char **argv) {
    char line[128], how[32];
    reply((size_t)getpid(), 0);
    while (read_line(line, sizeof line)) {
        size_t at = 0, size = 0;
        if (sscanf(line, "%31s %zu %zu", how, &at, &size) < 1 || at >= BLOCKS)
            continue;
        if (strcmp(how, "quit") == 0)
            exit(0);
        else if (strcmp(how, "vanish") == 0)
            _exit(0);
        else if (strcmp(how, "die") == 0)
            raise(SIGKILL);
        else if (strcmp(how, "turns") == 0) { /* as the agent does in the thread that takes turns */
            void (*say)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "carpool_takes_turns");
            if (say)
                say();
            reply(say != NULL, 0);
        } else if (strcmp(how, "exec") == 0)
            execv("/proc/self/exe", argv);
        else if (strcmp(how, "fork") == 0) {
            pid_t child = fork();
            siginfo_t ended;
            if (child == 0)
                reply((size_t)getpid(), 0);
            else /* the child obeys now; once it has ended it stays a zombie, nobody waits for it */
                waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT);
        } else if (strcmp(how, "free") == 0) {
            errno = UNTOUCHED;
            free(blocks[at]);
            blocks[at] = NULL;
            reply(0, errno);
        } else {
            errno = UNTOUCHED;
            void *block = allocate(how, blocks[at], size);
            int error = errno;
            if (block || size == 0)
                blocks[at] = block;
            reply(block ? malloc_usable_size(block) : 0, error);
        }
    }
}

struct worker {
    pthread_t thread;
    unsigned seed;
    void *blocks[BLOCKS];
};

static void *work(void *argument) {
    static const char *const ways[] = {"malloc", "calloc", "posix_memalign", "aligned_alloc", "memalign",
                                       "valloc", "realloc", "realloc", "reallocarray"};
    struct worker *self = argument;
    for (int step = 0; step < 2000; step++) {
        unsigned at = (unsigned)rand_r(&self->seed) % BLOCKS, way = (unsigned)rand_r(&self->seed) % 9;
        size_t size = 16 + (size_t)((unsigned)rand_r(&self->seed) % (step % 8 ? 1024 : 16384)) * 16;
        if (way < 6) {
            free(self->blocks[at]);
            self->blocks[at] = NULL;
        }
        void *block = allocate(ways[way], self->blocks[at], size);
        if (block) {
            memset(block, 1, size < 64 ? size : 64);
            self->blocks[at] = block;
        }
    }
    return NULL;
}

static atomic_int gentle;

static void *fork_often(void *stop) {
    while (!atomic_load((atomic_int *)stop)) {
        pid_t child = fork();
        if (child == 0) {
            void *volatile block = atomic_load(&gentle) ? NULL : malloc(100000);
            free(block);
            _exit(0);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            return "a forked child failed";
    }
    return NULL;
}

static const _Atomic uint64_t *my_slot(void) {
    int fd = open(getenv(CP_ENV_PAGE), O_RDONLY | O_CLOEXEC);
    const _Atomic uint64_t *page = mmap(NULL, CP_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    for (int slot = 1; page != MAP_FAILED && slot < CP_FIRST_LENT; slot++)
        if (atomic_load(&page[slot * CP_SLOT_WORDS + CP_S_PID]) == (uint64_t)getpid())
            return page + slot * CP_SLOT_WORDS;
    return NULL;
}

static const char *hammer(int rounds) {
    static struct worker workers[WORKERS];
    const _Atomic uint64_t *slot = my_slot();
    if (!slot)
        return "no slot was claimed";
    int64_t idle = (int64_t)atomic_load(&slot[CP_S_LIVE]);
    for (int round = 0; round < rounds; round++) {
        atomic_int stop = 0;
        pthread_t forker;
        void *trouble;
        int64_t held = 0;
        pthread_create(&forker, NULL, fork_often, &stop);
        for (int w = 0; w < WORKERS; w++) {
            workers[w].seed = (unsigned)(round * WORKERS + w);
            pthread_create(&workers[w].thread, NULL, work, &workers[w]);
        }
        for (int w = 0; w < WORKERS; w++)
            pthread_join(workers[w].thread, NULL);
        atomic_store(&stop, 1);
        pthread_join(forker, &trouble);
        if (trouble)
            return trouble;
        for (int w = 0; w < WORKERS; w++)
            for (int b = 0; b < BLOCKS; b++) {
                size_t size = malloc_usable_size(workers[w].blocks[b]);
                held += size >= 4096 ? (int64_t)size : 0;
            }
        if ((int64_t)atomic_load(&slot[CP_S_LIVE]) - idle != held)
            return "the slot disagrees with the sum of the blocks";
        if ((int64_t)atomic_load(&slot[CP_S_PEAK]) < idle + held)
            return "the peak is below what was held";
    }
    for (int w = 0; w < WORKERS; w++)
        for (int b = 0; b < BLOCKS; b++)
            free(workers[w].blocks[b]);
    return (int64_t)atomic_load(&slot[CP_S_LIVE]) == idle ? NULL : "bytes are left after everything was freed";
}

int main(int argc, char **argv) {
    if (argc == 3) {
        atomic_store(&gentle, strstr(argv[1], "gentle") != NULL);
        pid_t heir = strstr(argv[1], "heir") ? fork() : 0;
        int status = 0;
        if (heir)
            return heir < 0 || waitpid(heir, &status, 0) != heir || status != 0;
        const char *trouble = hammer(atoi(argv[2]));
        if (trouble)
            fprintf(stderr, "%s\n", trouble);
        return trouble != NULL;
    }
    obey(argv);
    return 0;
}
