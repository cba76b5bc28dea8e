/* Finding the driver, and being found in its place.
 *
 * Doors a program may use: the symbol itself (ours is first, being preloaded), dlsym with a handle of whatever file,
 * cuGetProcAddress. All give our hook for a row of hooks.def that the driver has, and the driver's own function for the
 * rest, which then costs nothing. The driver is the first one anybody finds; a second copy's functions are not used.
 *
 * Threads: any, also in constructors and inside dlopen, so no lock: two threads that look at once store the same values.
 */
#define _GNU_SOURCE
#include "guest.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

/* Since glibc 2.34 these have new versions; the old ones work everywhere. */
#if defined(__x86_64__)
#define OLD "GLIBC_2.2.5"
#define OLD1 "GLIBC_2.3.3"
#elif defined(__aarch64__)
#define OLD "GLIBC_2.17"
#define OLD1 OLD
#else
#error "carpool's CUDA guest knows x86-64 and aarch64"
#endif
__asm__(".symver dlopen, dlopen@" OLD);
__asm__(".symver dlvsym, dlvsym@" OLD);
__asm__(".symver dladdr, dladdr@" OLD);
__asm__(".symver dladdr1, dladdr1@" OLD1);

static void cp_find_driver(void);

/* Until the driver is found, whoever calls it finds it. */
#define CALL(symbol, params, args)                                                          \
    static CUresult first_##symbol params { return cp_find_driver(), real_##symbol args; }  \
    CUresult(*real_##symbol) params = first_##symbol;
#define HOOK(symbol, name, since, stream, params, args, ...) CALL(symbol, params, args)
#include "hooks.def"

struct row {
    const char *symbol, *name; /* name and since: how cuGetProcAddress is asked; since is 0 where it is not */
    int since, is_per_thread;
    void *hook, *real; /* hook is NULL for what we only call; real points to real_* */
    void *given;       /* what cuGetProcAddress gives for it, should that be another address */
};
static struct row rows[] = {
#define HOOK(symbol, name, since, stream, params, args, ...) {#symbol, #name, since, stream, (void *)cp_##symbol, &real_##symbol, NULL},
#define CALL(symbol, params, args) {#symbol, NULL, 0, 0, NULL, &real_##symbol, NULL},
#include "hooks.def"
};
#define IS_NVML(row) ((row)->symbol[0] == 'n')
#define ROWS_END (rows + sizeof rows / sizeof *rows)

__attribute__((visibility("hidden"))) void *(*cp_real_dlsym)(void *, const char *);
static atomic_bool is_filled;
static void *_Atomic libraries[2]; /* CUDA's and NVML's */

/* Stands for what this driver does not have; any number of arguments is fine for it. */
static CUresult cp_missing(void) { return CUDA_ERROR_NOT_FOUND; }
static nvmlReturn_t cp_nvml_missing(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }

/* Whether what was found at `base` is a driver: a library that only has some of its names is left alone. */
static bool is_driver(void *handle, const char *sign, const void *base) {
    Dl_info found;
    void *symbol = cp_real_dlsym(handle, sign);
    return symbol && dladdr(symbol, &found) && found.dli_fbase == base;
}

/* The first library that was found stays the one; `path` may name one that is loaded already. */
static void open_library(bool is_nvml, const char *path) {
    void *library = NULL, *opened = libraries[is_nvml] ? NULL : dlopen(path, RTLD_LAZY);
    if (opened)
        atomic_compare_exchange_strong(&libraries[is_nvml], &library, opened);
    library = libraries[is_nvml];
    for (struct row *row = rows; row < ROWS_END; row++)
        if (IS_NVML(row) == is_nvml) {
            void *found = library ? cp_real_dlsym(library, row->symbol) : NULL;
            if (library && !found && !row->hook && !is_nvml && cp_is_configured) /* what we need ourselves */
                cp_say_once("this driver has no %s: turns, graphs' memory and compute limits may not be kept", row->symbol);
            found = found ? found : is_nvml ? (void *)cp_nvml_missing : (void *)cp_missing;
            memcpy(row->real, &found, sizeof found);
        }
    for (struct row *row = rows; row < ROWS_END && library; row++) {
        cuuint64_t flags = row->is_per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 1;
        if (!is_nvml && row->since && real_cuGetProcAddress(row->name, &row->given, row->since, flags) != CUDA_SUCCESS)
            row->given = NULL;
    }
    is_filled = is_filled || !is_nvml;
}

__attribute__((cold, noinline)) static void cp_find_driver(void) {
    if (!cp_real_dlsym)
        cp_real_dlsym = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", OLD);
    if (!atomic_load(&is_filled)) /* or another thread is at it: both store the same */
        open_library(false, "libcuda.so.1");
    if (!libraries[true])
        open_library(true, "libnvidia-ml.so.1");
}

void *cp_swap(void *function) {
    for (struct row *row = rows; function && row < ROWS_END; row++) {
        void *real;
        memcpy(&real, row->real, sizeof real);
        if (row->hook && (real == function || row->given == function))
            return row->hook;
    }
    return function;
}

/* Whether this library stands behind ours, or in no order with it: what it finds behind itself (RTLD_NEXT) is the driver's.
 * What stands before ours finds ours, or a library in between that wants to be found. */
static bool is_behind(const void *caller) {
    Dl_info found;
    struct link_map *map = NULL, *ours = NULL;
    if (!dladdr1(caller, &found, (void **)&map, RTLD_DL_LINKMAP) || !dladdr1((void *)cp_swap, &found, (void **)&ours, RTLD_DL_LINKMAP))
        return false;
    while (ours && ours != map)
        ours = ours->l_prev;
    return !ours;
}

/* Our answer to dlsym, or NULL: then the real dlsym is entered as if we were not there (it looks at who calls it). */
__attribute__((visibility("hidden"))) void *cp_answer_dlsym(void *handle, const char *symbol, const void *caller) {
    static _Thread_local bool is_asking __attribute__((tls_model("initial-exec")));
    if (!cp_real_dlsym)
        cp_real_dlsym = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", OLD);
    /* All ours begin so. A sanitizer asks for others before strcmp, which is its own, can be called. */
    if (!symbol || !((symbol[0] == 'c' && symbol[1] == 'u') || (symbol[0] == 'n' && symbol[1] == 'v')))
        return NULL;
    const struct row *row = rows;
    while (row < ROWS_END && !(row->hook && strcmp(row->symbol, symbol) == 0))
        row++;
    if (row == ROWS_END || handle == RTLD_DEFAULT || is_asking || (handle == RTLD_NEXT && !is_behind(caller)))
        return NULL;
    is_asking = true;
    if (handle == RTLD_NEXT) /* a driver that nobody loaded is not found */
        handle = dlopen(IS_NVML(row) ? "libnvidia-ml.so.1" : "libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *found = handle ? cp_real_dlsym(handle, symbol) : NULL, *answer = NULL;
    Dl_info theirs, ours, first;
    if (found && dladdr(found, &theirs) && dladdr(row->hook, &ours) && theirs.dli_fbase != ours.dli_fbase &&
        is_driver(handle, IS_NVML(row) ? "nvmlInit_v2" : "cuInit", theirs.dli_fbase)) {
        if (!libraries[IS_NVML(row)])
            open_library(IS_NVML(row), theirs.dli_fname);
        answer = row->hook;
        memcpy(&found, row->real, sizeof found);
        if (dladdr(found, &first) && first.dli_fbase != theirs.dli_fbase && first.dli_fbase != ours.dli_fbase)
            cp_say_once("%.300s is not used: calls go to the driver that was found first", theirs.dli_fname);
    }
    is_asking = false;
    return answer;
}

/* Sanitizers come with a dlsym of their own, and call it before anything else can run: their builds leave ours out. */
#ifndef WITHOUT_DLSYM
__attribute__((visibility("default"))) void *dlsym(void *handle, const char *symbol);
#if defined(__x86_64__)
__asm__(".text\n.globl dlsym\n.type dlsym, @function\ndlsym:\n"
        "  mov (%rsp), %rdx\n  push %rdi\n  push %rsi\n  sub $8, %rsp\n"
        "  call cp_answer_dlsym\n"
        "  add $8, %rsp\n  pop %rsi\n  pop %rdi\n"
        "  test %rax, %rax\n  jne 1f\n"
        "  jmp *cp_real_dlsym(%rip)\n"
        "1: ret\n.size dlsym, .-dlsym\n");
#else
__asm__(".text\n.globl dlsym\n.type dlsym, %function\ndlsym:\n"
        "  stp x29, x30, [sp, #-32]!\n  stp x0, x1, [sp, #16]\n"
        "  mov x2, x30\n  bl cp_answer_dlsym\n"
        "  mov x2, x0\n  ldp x0, x1, [sp, #16]\n  ldp x29, x30, [sp], #32\n"
        "  cbz x2, 1f\n  mov x0, x2\n  ret\n"
        "1: adrp x16, cp_real_dlsym\n  ldr x16, [x16, :lo12:cp_real_dlsym]\n  br x16\n"
        ".size dlsym, .-dlsym\n");
#endif
#endif
