/* Kills a process of a job at every instruction of the guest: of one call that argument 1 names.
 *
 * Three processes. The watcher is of the same job, holds memory and looks at the books after every kill. The killer is
 * its child: for N = 1, 2, 3 and so on it starts a victim, lets it go instruction by instruction (ptrace), and kills it at
 * the N-th one that lies in the guest library, until the call returns before that. What the driver and the C library do is
 * stepped through and not counted: nothing of the guest's changes there.
 *
 * Run with LD_PRELOAD, LD_BIND_NOW=1 and a page whose cap is CAP. Says `KILLS HITS RESULT` (how many, how many of
 * them at the intended instruction, and what the whole call answered) and exits with 0; what is wrong goes to stderr, exit code 1; exit code 77 if this machine lets nobody trace. */
#define _GNU_SOURCE
#include <link.h>
#include <sched.h>
#include <stddef.h>
#include <stdnoreturn.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

#pragma GCC diagnostic ignored "-Wunused-function"
#include "../driver.h"
#include "../fake/books.h"
#include "../page.h"
#include "../protocol.h"

#define MIB (1ull << 20)
#define CAP (100 * MIB)
#define WATCHED (40 * MIB) /* held by the watcher */
#define OWN (10 * MIB)     /* held by a victim before it is killed */
#define BURIED (45 * MIB)  /* held by one who was killed before the victim began */
#define PAID_NS_MAX 1000000 /* two slices: the victim's and the watcher's */
#define NOT_ALLOWED 77
#define OUT_OF_MEMORY 2
#define SECONDS_MAX 60

CUresult cuInit(unsigned), cuDevicePrimaryCtxRetain(CUcontext *, CUdevice), cuCtxSetCurrent(CUcontext), cuCtxSynchronize(void);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t), cuMemFree_v2(CUdeviceptr), cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream), cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult cuModuleLoadData(CUmodule *, const void *), cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

static _Atomic uint64_t *page;
static const char *kind;
static volatile CUresult *answer; /* of the whole call; shared with the victims */
static uintptr_t base, text_from, text_to; /* of the guest */

noreturn static void fail(const char *what, unsigned long long found, unsigned long long wanted) {
    fprintf(stderr, "%s: %llu instead of %llu\n", what, found, wanted);
    exit(1);
}
static void expect(const char *what, unsigned long long found, unsigned long long wanted) {
    if (found != wanted)
        fail(what, found, wanted);
}
static bool is(const char *name) { return strcmp(kind, name) == 0; }

static void begin_cuda(void) {
    CUcontext context;
    expect("cuInit", cuInit(0), 0);
    expect("a context", cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context), 0);
}

/* The victim */

__attribute__((noinline)) static void done(CUresult result) {
    *answer = result;
    __asm__ volatile("" ::: "memory");
}

static void call(CUdeviceptr own, CUmemGenericAllocationHandle handle, CUfunction kernel) {
    CUmemAllocationProp prop = {.type = 1, .location = {.type = 1}};
    CUmemGenericAllocationHandle made;
    CUdeviceptr at;
    raise(SIGSTOP);
    if (is("first") || is("alloc"))
        done(cuMemAlloc_v2(&at, 5 * MIB));
    else if (is("refused"))
        done(cuMemAlloc_v2(&at, CAP));
    else if (is("bury")) /* there is room if the dead one's bytes are not counted */
        done(cuMemAlloc_v2(&at, CAP - WATCHED - OWN));
    else if (is("free"))
        done(cuMemFree_v2(own));
    else if (is("async"))
        done(cuMemAllocAsync(&at, 5 * MIB, NULL));
    else if (is("free_async"))
        done(cuMemFreeAsync(own, NULL));
    else if (is("create"))
        done(cuMemCreate(&made, 6 * MIB, &prop, 0));
    else if (is("release"))
        done(cuMemRelease(handle));
    else if (is("launch"))
        done(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    else if (is("exit"))
        exit(0);
}

noreturn static void be_victim(void) {
    CUmemAllocationProp prop = {.type = 1, .location = {.type = 1}};
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr own = 0;
    CUmodule module;
    CUfunction kernel = NULL;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(NOT_ALLOWED);
    begin_cuda();
    if (is("release"))
        expect("a handle", cuMemCreate(&handle, OWN, &prop, 0), 0);
    else if (!is("first"))
        expect("own memory", cuMemAlloc_v2(&own, OWN), 0);
    if (is("launch"))
        expect("a kernel", cuModuleLoadData(&module, "") | cuModuleGetFunction(&kernel, module, "busy_1us"), 0);
    call(own, handle, kernel);
    _exit(0);
}

/* The killer */

static int find_guest(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    const char *name = strrchr(info->dlpi_name, '/');
    for (int i = 0; name && strcmp(name, "/gpu.so") == 0 && i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
            base = info->dlpi_addr;
            text_from = base + info->dlpi_phdr[i].p_vaddr;
            text_to = text_from + info->dlpi_phdr[i].p_memsz;
        }
    return 0;
}

/* Another process of the job, killed while it held memory. */
static void leave_a_dead_one(void) {
    pid_t pid = fork();
    if (pid == 0) {
        CUdeviceptr at;
        begin_cuda();
        expect("memory of the dead one", cuMemAlloc_v2(&at, BURIED), 0);
        raise(SIGKILL);
    }
    waitpid(pid, NULL, 0);
}

static pid_t start_victim(void) {
    int status;
    pid_t pid = fork();
    if (pid == 0)
        be_victim();
    waitpid(pid, &status, 0);
    if (WIFEXITED(status))
        exit(WEXITSTATUS(status));
    expect("the victim's first stop", WSTOPSIG(status), SIGSTOP);
    ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_EXITKILL);
    return pid;
}

/* One instruction, or one signal that is its own. False: it has ended. */
static bool goes_on(pid_t pid, int request) {
    int status, signal = 0;
    do {
        ptrace(request, pid, NULL, signal);
        waitpid(pid, &status, 0);
        signal = WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
    } while (WIFSTOPPED(status) && signal != SIGTRAP);
    return WIFSTOPPED(status);
}

static bool is_guests(uintptr_t at) { return at >= text_from && at < text_to; }
static uintptr_t word_of(pid_t pid, size_t offset) { return (uintptr_t)ptrace(PTRACE_PEEKUSER, pid, offset, NULL); }
#define REGISTER(name) offsetof(struct user, regs.name)

/* At full speed to where it comes to this instruction, by a breakpoint there. */
static bool goes_to(pid_t pid, uintptr_t at) {
    long text = ptrace(PTRACE_PEEKTEXT, pid, at, NULL);
    ptrace(PTRACE_POKETEXT, pid, at, (text & ~0xFFl) | 0xCC);
    if (!goes_on(pid, PTRACE_CONT))
        return false;
    ptrace(PTRACE_POKETEXT, pid, at, text);
    ptrace(PTRACE_POKEUSER, pid, REGISTER(rip), at);
    return true;
}

/* The next instruction of the guest; 0: the call has returned. Where the guest calls somebody else, what is returned to is
 * the next one. */
static uintptr_t step(pid_t pid) {
    for (bool was_guests = is_guests(word_of(pid, REGISTER(rip))); goes_on(pid, PTRACE_SINGLESTEP); was_guests = false) {
        uintptr_t at = word_of(pid, REGISTER(rip));
        if (at == (uintptr_t)done)
            return 0;
        uintptr_t to = was_guests ? (uintptr_t)ptrace(PTRACE_PEEKDATA, pid, word_of(pid, REGISTER(rsp)), NULL) : 0;
        if (!is_guests(at) && is_guests(to))
            return goes_to(pid, to) ? to : 0;
        if (is_guests(at))
            return at;
    }
    return 0;
}

/* Where the guest goes when nobody kills it. */
static uintptr_t path[20000];
static unsigned walk(void) {
    unsigned length = 0;
    if (is("bury"))
        leave_a_dead_one();
    pid_t pid = start_victim();
    while (length < sizeof path / sizeof *path && (path[length] = step(pid)))
        length++;
    if (!is("exit"))
        ptrace(PTRACE_CONT, pid, NULL, NULL); /* it says what the call answered */
    waitpid(pid, NULL, 0);
    if (length == sizeof path / sizeof *path)
        fail("instructions of the guest in one call, too many to try", length, 0);
    return length;
}

/* To the instruction of this number, from the last one before it that stands on the path for the first time. */
static void go_to(pid_t pid, unsigned number) {
    unsigned from = number, before = 0;
    do
        for (before = 0; before < from && path[before] != path[from]; before++)
            ;
    while (before < from && from--);
    if (goes_to(pid, path[from]))
        while (from++ < number && step(pid))
            ;
}

static void have_it_checked(unsigned number, int to_watcher, int from_watcher) {
    char is_right;
    if (write(to_watcher, &number, sizeof number) != sizeof number || read(from_watcher, &is_right, 1) != 1) {
        fprintf(stderr, "after kill %u of '%s', at %#zx of the guest\n", number, kind, (size_t)(path[number] - base));
        exit(1);
    }
}

/* Every other one is looked at while its parent has not waited for it: a zombie. */
static void kill_all(int to_watcher, int from_watcher) {
    have_it_checked(0, to_watcher, from_watcher); /* it has begun */
    unsigned length = walk(), hits = 0;
    have_it_checked(0, to_watcher, from_watcher);
    for (unsigned number = 0; number < length; number++) {
        siginfo_t facts;
        if (is("bury"))
            leave_a_dead_one();
        pid_t pid = start_victim();
        go_to(pid, number);
        hits += word_of(pid, REGISTER(rip)) == path[number];
        kill(pid, SIGKILL);
        waitid(P_PID, (id_t)pid, &facts, WEXITED | (number % 2 ? WNOWAIT : 0));
        have_it_checked(number, to_watcher, from_watcher);
        waitpid(pid, NULL, 0);
    }
    printf("%u %u %d\n", length, hits, *answer);
    exit(0);
}

/* The watcher */

static void check_rows(void) {
    uint64_t self = (uint64_t)getpid(), true_bytes = 0, pending = 0, counted = 0;
    books_lock();
    books_bury();
    true_bytes = books_used(0);
    books_unlock();
    for (unsigned slot = 1; slot < CP_SLOTS; slot++) {
        _Atomic uint64_t *words = page + slot * CP_SLOT_WORDS;
        if (words[CP_S_PID])
            expect("the owner of a slot", words[CP_S_PID], self);
        counted += words[CP_S_LIVE];
        pending += words[CP_S_PENDING];
    }
    expect("bytes by the driver's books", true_bytes, WATCHED);
    expect("bytes by ours", counted, WATCHED);
    expect("bytes that somebody waits for", pending, 0);
    page[CP_H_SLOTS_USED] = 2; /* ours is 1; as if nobody else had been there, so that all go the same way */
}

static void check_figures(void) {
    size_t left, total;
    expect("cuMemGetInfo", cuMemGetInfo_v2(&left, &total), 0);
    expect("the cap", total, CAP);
    expect("free bytes", left, CAP - WATCHED);
}

/* What is over the cap, what is at the cap: nobody who died is in the way of either. */
static void check_room(void) {
    CUdeviceptr at, more;
    expect("an allocation up to the cap", cuMemAlloc_v2(&at, CAP - WATCHED), 0);
    expect("one beyond it", cuMemAlloc_v2(&more, 1), OUT_OF_MEMORY);
    expect("its free", cuMemFree_v2(at), 0);
}

/* Nobody waits for the dead one's kernel to be measured, nor pays for more than he had taken. */
static void check_time(CUfunction kernel) {
    uint64_t now = now_ns(), until = page[CP_H_PAID_UNTIL];
    if (until > now + PAID_NS_MAX)
        fail("device time paid in advance", until - now, PAID_NS_MAX);
    if (page[CP_H_TRIAL])
        page[CP_H_TRIAL] |= 1ull << 62; /* long after now: patience never ends, only that he is dead counts */
    expect("a launch", cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) | cuCtxSynchronize(), 0);
    page[CP_H_TRIAL] = page[CP_H_PAID_UNTIL] = 0; /* so that all go the same way */
}

static void watch(int from_killer, int to_killer) {
    CUfunction kernel = NULL;
    CUmodule module;
    CUdeviceptr own;
    unsigned number;
    expect("the watcher's memory", cuMemAlloc_v2(&own, WATCHED), 0);
    expect("a kernel", cuModuleLoadData(&module, "") | cuModuleGetFunction(&kernel, module, "busy_1us"), 0);
    while (read(from_killer, &number, sizeof number) == sizeof number) {
        if (number / 2 % 2) /* whichever looks first must see that somebody died */
            check_figures();
        check_room();
        check_figures();
        check_rows();
        if (is("launch"))
            check_time(kernel);
        if (write(to_killer, "", 1) != 1)
            fail("the killer listens", 0, 1);
    }
}

/* They take turns at every instruction: to wake somebody on another core takes five times as long as the rest. */
static void use_one_core(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((unsigned)sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
}

int main(int count, char **arguments) {
    int to_watcher[2], to_killer[2], status;
    kind = count > 1 ? arguments[1] : "";
    alarm(SECONDS_MAX);
    use_one_core();
    dl_iterate_phdr(find_guest, NULL);
    int fd = open(getenv(CP_ENV_PAGE), O_RDWR | O_CLOEXEC);
    page = mmap(NULL, CP_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    answer = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!text_to || page == MAP_FAILED || answer == MAP_FAILED || !books_open() || pipe(to_watcher) || pipe(to_killer))
        fail("the guest, its page and the books are there", 0, 1);
    pid_t killer = fork(); /* before cuInit: a driver does not work in a forked child */
    if (killer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(SECONDS_MAX);
        close(to_watcher[0]);
        close(to_killer[1]);
        kill_all(to_watcher[1], to_killer[0]);
    }
    close(to_watcher[1]);
    close(to_killer[0]);
    begin_cuda();
    watch(to_watcher[0], to_killer[1]);
    waitpid(killer, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
