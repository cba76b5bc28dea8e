/* Which variables are read while the warm parent imports its modules (src/carpool/agent/warm). It is preloaded into
 * that parent only. The programs that the parent forks have it too, and it notes nothing there.
 *
 * Threads: any thread may call getenv. Lock: none; a name is copied into bytes that one fetch-and-add made its own. A
 *   name that finds no room is counted, and the parent then serves nobody.
 *
 * Not seen: what the C library reads for itself (LC_*, TZ, LD_*, MALLOC_*) and who walks through `environ`, as some
 * versions of libgomp do. Those are compared by their prefixes (wire/warm.py). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

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

/* The names, each ended by a newline, and how many bytes they take; more than there is room if some are missing. From
 * then on nothing is noted. */
EXPORT const char *carpool_reads(size_t *bytes);
const char *carpool_reads(size_t *bytes) {
    atomic_store(&cp_is_over, true);
    *bytes = atomic_load(&cp_used);
    return cp_names;
}
