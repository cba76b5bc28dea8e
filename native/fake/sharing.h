/* Memory of one process in another: IPC handles and exported allocations. Part of cuda.c. The bytes stay in the row of
 * the process that made them. */

struct ipc {
    uint64_t pid, fd, bytes;
    char unused[40];
};
_Static_assert(sizeof(struct ipc) == 64, "an IPC handle is 64 bytes");

/* Until somebody asks, a block is private; then its bytes move to a file at the same address. */
static int make_shared(struct block *b) {
    int fd = memfd_create("carpool-stub", MFD_CLOEXEC);
    void *at = (void *)(uintptr_t)b->at;
    if (fd < 0 || ftruncate(fd, (off_t)b->span) != 0 || pwrite(fd, at, b->span, 0) != (ssize_t)b->span ||
        mmap(at, b->span, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return fd;
}

API cuIpcGetMemHandle(struct ipc *out, CUdeviceptr at) {
    NEED_CONTEXT;
    pthread_mutex_lock(&lock);
    struct block *b = *find(at, PLAIN);
    if (b && !b->shared_fd)
        b->shared_fd = make_shared(b);
    bool is_good = b && b->shared_fd > 0;
    if (is_good)
        *out = (struct ipc){.pid = (uint64_t)getpid(), .fd = (uint64_t)b->shared_fd, .bytes = b->span};
    pthread_mutex_unlock(&lock);
    return is_good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuIpcOpenMemHandle_v2(CUdeviceptr *out, struct ipc handle, unsigned int flags) {
    (void)flags;
    NEED_CONTEXT;
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)handle.pid, (unsigned long long)handle.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (at == MAP_FAILED)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    note(PTR(at), IMPORTED, context()->device, 0, handle.bytes);
    pthread_mutex_unlock(&lock);
    return *out = PTR(at), CUDA_SUCCESS;
}

API cuIpcCloseMemHandle(CUdeviceptr at) {
    NEED_CONTEXT;
    return release(at, IMPORTED);
}

/* An exported allocation is its file: what is mapped from it is the same memory, and counted once. */
API cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    struct block *b = *find(handle, HANDLE);
    int fd = b && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && b->shared_fd > 0 ? fcntl(b->shared_fd, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&lock);
    if (fd < 0) /* also what was not asked to be exportable when it was made */
        return b && type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    return *(int *)out = fd, CUDA_SUCCESS;
}

API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *shared, int type) {
    struct stat facts;
    int given = (int)(intptr_t)shared;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(given, &facts) != 0 || facts.st_size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = fcntl(given, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    struct block *made = note(*out = next_handle++, HANDLE, 0, 0, 0);
    made->whole = (size_t)facts.st_size;
    made->shared_fd = fd;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
