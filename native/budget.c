/* The job's account of device bytes: this process's slot of the shared page, and a table of what it holds.
 *
 * Threads: any. Lock: `table_lock` guards the table and is never held across a call to the driver; `open_lock` guards
 *   the opening of the account. Both belong to this process: a killed process holds no lock that others wait for.
 *
 * Q1  A process adds the bytes to its slot before it asks the driver, and then sums all slots. Of two that ask at once
 *     the later sees both, so the cap is never passed. Both may see both: then each waits a moment and asks again, and
 *     neither is refused for bytes that the other did not get (S_PENDING tells such bytes from held ones).
 * Q2  A killed process takes its slot with it: sums skip the dead, and whoever needs room wipes their slots.
 * Q3  If the account cannot be opened, a job with a cap gets no device memory at all, and a sentence says so; a job
 *     without a cap runs on uncounted. */
#define _GNU_SOURCE
#include "guest.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>

#include "slots.h"

#define TRIES 40 /* times Q1's second attempt is made, about 100 µs apart: a refusal at the cap is 4 ms late at most */

char cp_job[80], cp_socket_path[108], cp_version[32], cp_device[80];
bool cp_is_configured, cp_must_cap, cp_may_spill;
static char page_path[512];
static bool is_off;
static uint64_t wait_ns; /* how long an allocation may wait for room */
static cp_word *_Atomic cp_slot;
static cp_lock open_lock, table_lock;
static atomic_uint_fast64_t graph_bytes;
atomic_int cp_captures;
cp_lock cp_map_lock;

static struct cp_entry *table;
static size_t table_size, table_used; /* size is a power of two, or 0 */

/* The table: open addressing, entries moved back on removal, so its cost does not grow with what is held. */

static size_t home_of(uint32_t kind, uint64_t key) {
    uint64_t mixed = (key ^ (uint64_t)kind << 58) * 0x9E3779B97F4A7C15ull;
    return (size_t)(mixed >> 20) & (table_size - 1);
}

static struct cp_entry *probe(uint32_t kind, uint64_t key) {
    size_t at = home_of(kind, key);
    while (table[at].kind && (table[at].kind != kind || table[at].key != key))
        at = (at + 1) & (table_size - 1);
    return &table[at];
}

static bool grow(void) {
    size_t old_size = table_size, size = old_size ? old_size * 2 : 1024;
    struct cp_entry *old = table;
    void *fresh = mmap(NULL, size * sizeof *table, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED)
        return false;
    table = fresh;
    table_size = size;
    for (size_t i = 0; i < old_size; i++)
        if (old[i].kind)
            *probe(old[i].kind, old[i].key) = old[i];
    if (old)
        munmap(old, old_size * sizeof *old);
    return true;
}

/* An entry that stands further from its home than the hole does moves into it, and leaves another hole. */
static void erase(struct cp_entry *entry) {
    size_t hole = (size_t)(entry - table), last = table_size - 1;
    PUT(cp_captures, GET(cp_captures) - (entry->kind == CP_CAPTURE));
    for (size_t at = (hole + 1) & last; table[at].kind; at = (at + 1) & last)
        if (((at - home_of(table[at].kind, table[at].key)) & last) >= ((at - hole) & last)) {
            table[hole] = table[at];
            hole = at;
        }
    table[hole].kind = 0;
    table_used--;
}

/* Where the table cannot grow the bytes stay counted for good, which is the safe side. What had this key before was freed
 * where we did not see it. */
void cp_note(enum cp_kind kind, uint64_t key, uint64_t owner, uint64_t bytes) {
    uint64_t stale = 0;
    cp_take_lock(&table_lock);
    if (table_used * 2 < table_size || grow()) {
        struct cp_entry *entry = probe(kind, key);
        stale = entry->kind && kind <= CP_MIPMAP ? entry->bytes : 0;
        PUT(cp_captures, GET(cp_captures) + (!entry->kind && kind == CP_CAPTURE));
        table_used += !entry->kind;
        *entry = (struct cp_entry){.key = key, .owner = owner, .bytes = bytes, .kind = kind, .refs = 1};
    }
    cp_drop_lock(&table_lock);
    cp_unreserve(stale);
}

/* The entry as it is after the change; one without references is removed, so -1 takes what has only one. */
bool cp_change_refs(enum cp_kind kind, uint64_t key, int by, struct cp_entry *out) {
    cp_take_lock(&table_lock);
    struct cp_entry *entry = table_size ? probe(kind, key) : NULL;
    bool is_found = entry && entry->kind;
    if (is_found) {
        entry->refs += (uint32_t)by;
        *out = *entry;
        if (entry->refs == 0)
            erase(entry);
    }
    cp_drop_lock(&table_lock);
    return is_found;
}

/* Looks at every entry: programs ask for the handle behind an address seldom. */
uint64_t cp_range_around(uint64_t at) {
    uint64_t key = 0;
    cp_take_lock(&table_lock);
    for (size_t i = 0; i < table_size && !key; i++)
        if (table[i].kind == CP_RANGE && at - table[i].key < table[i].bytes)
            key = table[i].key;
    cp_drop_lock(&table_lock);
    return key;
}

void cp_drop_context(uint64_t context) {
    uint64_t bytes = 0, spilled = 0;
    cp_take_lock(&table_lock);
    for (size_t i = 0; i < table_size;) {
        struct cp_entry *entry = &table[i];
        bool is_spilled = entry->kind == CP_SPILLED;
        if (entry->kind >= CP_POINTER && entry->kind <= CP_CAPTURE && entry->owner == context) {
            *(is_spilled ? &spilled : &bytes) += entry->bytes; /* another entry may move here: look again */
            erase(entry);
        } else
            i++;
    }
    cp_drop_lock(&table_lock);
    cp_unreserve(bytes);
    cp_spill(-spilled);
    cp_forget_context(context);
}

void cp_leave_context(uint64_t context, uint64_t to) {
    cp_take_lock(&table_lock);
    for (size_t i = 0; i < table_size; i++)
        if (table[i].kind >= CP_POINTER && table[i].kind < CP_CAPTURE && table[i].owner == context)
            table[i].owner = to;
    cp_drop_lock(&table_lock);
}

/* The account */

void cp_say_unless(atomic_flag *is_said, const char *format, ...) {
    char what[750], line[768];
    va_list facts;
    va_start(facts, format);
    vsnprintf(what, sizeof what, format, facts);
    va_end(facts);
    snprintf(line, sizeof line, "carpool: %s\n", what);
    if (!atomic_flag_test_and_set(is_said))
        cp_say(line);
}

static void in_forked_child(void) {
    atomic_store(&open_lock, 0);
    atomic_store(&table_lock, 0);
    atomic_store(&cp_map_lock, 0);
    table_size = table_used = 0;
    table = NULL; /* the parent's copy is not ours to look at; a fork of a CUDA program seldom lives long */
    graph_bytes = cp_captures = 0;
    atomic_store(&cp_slot, NULL);
    cp_forget_link();
    cp_forget_context(0);
}

__attribute__((cold, noinline)) static cp_word *open_account(bool must_say) {
    static bool is_following;
    const char *why = "every slot of the shared page is taken";
    int saved = errno;
    cp_take_lock(&open_lock);
    if (!atomic_load(&cp_slot) && !is_off && cp_is_configured) {
        cp_page = cp_page ? cp_page : cp_map_page(page_path, &why);
        is_following = is_following || (cp_page && cp_follow_forks(in_forked_child));
        if (is_following)
            atomic_store(&cp_slot, cp_claim_slot());
        is_off = must_say && !atomic_load(&cp_slot);
        if (is_off)
            cp_say_once("%s (shared page %.300s); %s, and it takes no turns%s", why, page_path,
                        cp_must_cap ? "without it the cap cannot be kept, so this program gets no device memory" : NOT_COUNTED,
                        cp_page ? "" : " and has no compute limit");
    }
    cp_drop_lock(&open_lock);
    errno = saved;
    return atomic_load(&cp_slot);
}

static void cp_load(void);

cp_word *cp_my_slot(void) {
    cp_word *slot = atomic_load_explicit(&cp_slot, memory_order_acquire);
    if (slot || is_off)
        return slot;
    cp_load(); /* a constructor that ran before ours may be calling */
    return cp_is_configured ? open_account(true) : NULL;
}

cp_word *cp_header(void) { return cp_my_slot(), cp_page; }

/* The sum of a word over all slots, each counted as no more than `most`. */
static uint64_t sum_of(unsigned word, uint64_t most) {
    uint64_t sum = 0;
    for (unsigned s = 1; s < GET(cp_page[CP_H_SLOTS_USED]) && s < CP_FIRST_LENT; s++)
        sum += GET(cp_slot_at(s)[word]) < most ? GET(cp_slot_at(s)[word]) : most;
    return sum;
}

unsigned cp_launching(void) { return (unsigned)sum_of(CP_S_DEVICE_NS, 1); }

bool cp_is_alive(uint64_t pid) { return !cp_is_gone(pid); }

void cp_count(uint64_t ns) {
    cp_word *slot = cp_my_slot();
    atomic_fetch_add(&cp_page[CP_H_DEVICE_NS], ns);
    if (slot)
        atomic_fetch_add(&slot[CP_S_DEVICE_NS], ns);
}

bool cp_is_capped(void) { return cp_must_cap || (cp_my_slot() && GET(cp_page[CP_H_CAP])); }

bool cp_is_over(void) {
    uint64_t cap = cp_my_slot() ? GET(cp_page[CP_H_CAP]) : 0;
    return cap && cp_held(false) > cap && cp_held(true) > cap;
}

/* The cap looks reached: without the dead, and after those who ask just now, is it? */
__attribute__((cold, noinline)) static bool reserve_hard(cp_word *slot, uint64_t bytes, uint64_t cap) {
    uint64_t started = cp_now();
    unsigned salt = (unsigned)getpid(), tries = 0;
    int saved = errno;
    bool is_given;
    while (!(is_given = cp_held(true) <= cap)) {
        uint64_t asking = sum_of(CP_S_PENDING, UINT64_MAX) - bytes; /* not ours */
        atomic_fetch_or(&slot[CP_S_FLAGS], CP_FLAG_ASIDE);
        atomic_fetch_sub(&slot[CP_S_LIVE], bytes);
        uint64_t own = GET(slot[CP_S_LIVE]), held = cp_held(true);
        bool may_race = asking && bytes <= cap && held - (asking < held ? asking : held) <= cap - bytes;
        bool may_wait = wait_ns && bytes <= cap && own <= cap - bytes && cp_now() - started < wait_ns;
        if (!(may_race && tries++ < TRIES) && !(may_wait && GET(cp_page[CP_H_DENIED_NS]) < started))
            break;
        salt = salt * 1103515245u + 12345u;
        cp_sleep(may_race ? (uint64_t)(salt >> 16) * 3 : 2000000);
        cap = GET(cp_page[CP_H_CAP]);
        atomic_fetch_add(&slot[CP_S_LIVE], bytes);
    }
    atomic_fetch_and(&slot[CP_S_FLAGS], ~(uint64_t)CP_FLAG_ASIDE);
    errno = saved;
    return is_given;
}

bool cp_reserve(uint64_t bytes) {
    cp_word *slot = cp_my_slot();
    if (!slot)
        return !(cp_must_cap && cp_is_configured);
    atomic_fetch_add(&slot[CP_S_PENDING], bytes);
    uint64_t live = atomic_fetch_add(&slot[CP_S_LIVE], bytes) + bytes, cap = GET(cp_page[CP_H_CAP]);
    bool is_given = !cap || cp_held(false) <= cap || reserve_hard(slot, bytes, cap);
    atomic_fetch_sub(&slot[CP_S_PENDING], bytes);
    if (is_given)
        cp_raise(&slot[CP_S_PEAK], (int64_t)live);
    else {
        atomic_fetch_add(&cp_page[CP_H_DENIED_COUNT], 1);
        PUT(cp_page[CP_H_DENIED_BYTES], bytes);
    }
    return is_given;
}

void cp_unreserve(uint64_t bytes) {
    cp_word *slot = atomic_load_explicit(&cp_slot, memory_order_acquire);
    if (slot && bytes)
        atomic_fetch_sub(&slot[CP_S_LIVE], bytes);
}

void cp_spill(uint64_t bytes) {
    cp_word *slot = cp_my_slot();
    if (slot && bytes)
        atomic_fetch_add(&slot[CP_S_SPILLED], bytes);
    if ((int64_t)bytes > 0)
        cp_say_once("job %s: there is no room for all of its memory; the rest is managed memory, which is slow "
                    "(--oversubscribe)", cp_job);
}

void cp_settle_graph(uint64_t bytes) {
    cp_word *slot = cp_my_slot();
    uint64_t before = atomic_exchange(&graph_bytes, bytes);
    if (slot && bytes != before)
        cp_raise(&slot[CP_S_PEAK], (int64_t)(atomic_fetch_add(&slot[CP_S_LIVE], bytes - before) + bytes - before));
}

bool cp_view(uint64_t *free, uint64_t *total, uint64_t *used) {
    cp_word *header = cp_header();
    uint64_t cap = header ? GET(header[CP_H_CAP]) : 0;
    if (!cap || !(cp_must_cap || GET(cp_page[CP_H_CAPACITY]) & CP_OWN_CAP)) /* one that is not its user's changes */
        return false;
    uint64_t held = cp_held(true), room = held < cap ? cap - held : 0;
    *total = *total < cap ? *total : cap;
    *free = *free < room ? *free : room;
    *used = held < *total - *free ? held : *total - *free;
    return true;
}

bool cp_holds(uint64_t pid, unsigned long long *bytes) {
    unsigned s = CP_FIRST_LENT - 1;
    while (s > 0 && (GET(cp_slot_at(s)[CP_S_PID]) != pid || cp_is_foreign(GET(cp_slot_at(s)[CP_S_FLAGS]))))
        s--;
    int64_t live = s > 0 ? (int64_t)GET(cp_slot_at(s)[CP_S_LIVE]) : 0;
    *bytes = live > 0 ? (uint64_t)live : 0;
    return s > 0 && pid != 0; /* slots that nobody has are of no process */
}

/* Load and exit */

static void copy_setting(char *out, size_t size, const char *name) {
    snprintf(out, size, "%s", getenv(name) ? getenv(name) : "");
}

/* The settings are taken before the program can edit its environment, and the slot before a Python agent looks for one.
 * Trouble is said only when the program turns out to use CUDA. */
__attribute__((constructor)) static void cp_load(void) {
    static atomic_bool is_loaded;
    if (atomic_exchange(&is_loaded, true))
        return;
    const char *capped = getenv(CP_ENV_IS_CAPPED), *spills = getenv(CP_ENV_MAY_OVERSUBSCRIBE),
               *wait = getenv(CP_ENV_WAIT_MEMORY_NS);
    copy_setting(page_path, sizeof page_path, CP_ENV_PAGE);
    copy_setting(cp_job, sizeof cp_job, CP_ENV_JOB);
    copy_setting(cp_socket_path, sizeof cp_socket_path, CP_ENV_SOCKET);
    copy_setting(cp_version, sizeof cp_version, CP_ENV_VERSION);
    copy_setting(cp_device, sizeof cp_device, "CUDA_VISIBLE_DEVICES");
    cp_is_configured = page_path[0] != 0;
    cp_must_cap = cp_is_configured && capped && capped[0] == '1';
    cp_may_spill = spills && spills[0] == '1';
    wait_ns = wait ? strtoull(wait, NULL, 10) : 0;
    open_account(false);
}

__attribute__((destructor)) static void cp_unload(void) {
    cp_lose_samples();
    cp_leave();
    cp_word *slot = atomic_exchange(&cp_slot, NULL);
    is_off = true;
    cp_must_cap = false; /* destructors that come after us may still allocate */
    if (slot && GET(slot[CP_S_PID]) == (uint64_t)getpid())
        cp_wipe(slot, 0);
}
