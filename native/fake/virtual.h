/* Virtual memory management. Part of cuda.c. A handle's bytes lie in a file, and mapping it maps them: two ranges of one
 * handle are the same memory. What may be exported has a file of its own; the others share one without an end, as a
 * program may have more handles than files. A range without a handle behind it cannot be touched. */

static int common_fd = -1;
static uint64_t common_end; /* offsets are not used again */

static int file_of(const struct block *b) { return b->shared_fd > 0 ? b->shared_fd : common_fd; }

/* With the lock held: where the bytes of a new handle are. */
static bool give_file(struct block *b, bool is_exportable) {
    if (is_exportable) {
        b->shared_fd = memfd_create("carpool-stub", MFD_CLOEXEC);
        return b->shared_fd > 0 && ftruncate(b->shared_fd, (off_t)b->whole) == 0;
    }
    if (common_fd < 0)
        common_fd = memfd_create("carpool-stub", MFD_CLOEXEC);
    b->offset = common_end;
    common_end += b->whole;
    return common_fd >= 0 && ftruncate(common_fd, (off_t)common_end) == 0;
}

API cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop, int option) {
    (void)prop, (void)option;
    return *out = CHUNK, CUDA_SUCCESS;
}

static struct reservation {
    CUdeviceptr at;
    size_t size;
    struct reservation *next;
} *reservations;

/* With the lock held: the reservation that these addresses lie in. */
static struct reservation **reservation_of(CUdeviceptr at, size_t size) {
    struct reservation **r = &reservations;
    while (*r && (at < (*r)->at || size > (*r)->size || at - (*r)->at > (*r)->size - size))
        r = &(*r)->next;
    return r;
}

API cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
    (void)alignment, (void)hint, (void)flags;
    struct reservation *made = calloc(1, sizeof *made);
    void *at = made && size ? mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
    if (at == MAP_FAILED) {
        free(made);
        return size ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&lock);
    *made = (struct reservation){.at = *out = PTR(at), .size = size, .next = reservations};
    reservations = made;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
API cuMemAddressFree(CUdeviceptr at, size_t size) {
    pthread_mutex_lock(&lock);
    struct reservation **r = reservation_of(at, size), *gone = *r;
    bool is_whole = gone && gone->at == at && gone->size == size && munmap((void *)(uintptr_t)at, size) == 0;
    if (is_whole) {
        *r = gone->next;
        free(gone);
    }
    pthread_mutex_unlock(&lock);
    return is_whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API cuMemSetAccess(CUdeviceptr at, size_t size, const void *desc, size_t count) { return (void)at, (void)size, (void)desc, (void)count, CUDA_SUCCESS; }

/* With the lock held. A handle without references is gone for callers, its block stays while ranges use it. */
static void drop(struct block *backing) {
    if (--backing->refs == 0) {
        uncharge(backing->device, backing->bytes);
        if (!backing->shared_fd)
            fallocate(common_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)backing->offset, (off_t)backing->whole);
        forget(find(backing->at, HANDLE));
    }
}

API cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) {
    (void)flags;
    if (!is_ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !prop || !size || size % CHUNK)
        return CUDA_ERROR_INVALID_VALUE;
    bool is_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (is_device)
        NEED_DEVICE(prop->location.id);
    unsigned device = is_device ? (unsigned)prop->location.id : 0;
    if (is_device && (injected() || !charge(device, size)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    struct block *made = note(next_handle++, HANDLE, device, is_device ? size : 0, 0);
    made->whole = size;
    bool has_file = give_file(made, prop->requestedHandleTypes != 0);
    if (has_file)
        *out = made->at;
    else
        drop(made);
    pthread_mutex_unlock(&lock);
    return has_file ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuMemRelease(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&lock);
    struct block *b = *find(handle, HANDLE);
    if (b)
        drop(b);
    pthread_mutex_unlock(&lock);
    return b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* With the lock held. */
static bool map_range(CUdeviceptr at, size_t size, size_t offset, struct block *b) {
    if (!b || *find(at, RANGE) || !*reservation_of(at, size) || !size || offset > b->whole || size > b->whole - offset)
        return false;
    void *place = (void *)(uintptr_t)at;
    return mmap(place, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_of(b), (off_t)(b->offset + offset)) == place;
}

API cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    struct block *b = *find(handle, HANDLE);
    bool is_mapped = map_range(at, size, offset, b);
    if (is_mapped) {
        b->refs++;
        note(at, RANGE, b->device, size, 0)->backing = b;
    }
    pthread_mutex_unlock(&lock);
    return is_mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemUnmap(CUdeviceptr at, size_t size) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (CUdeviceptr end = at + size; at < end && !result;) {
        struct block **range = find(at, RANGE);
        if (!*range) {
            result = CUDA_ERROR_INVALID_VALUE;
            break;
        }
        mmap((void *)(uintptr_t)at, (*range)->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        at += (*range)->bytes;
        struct block *backing = (*range)->backing;
        forget(range);
        drop(backing);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* With the lock held: the range that this address lies in, at its beginning or not, as cuda.h says. */
static struct block *range_around(CUdeviceptr at) {
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct block *b = buckets[i]; b; b = b->next)
            if (b->kind == RANGE && at - b->at < b->bytes)
                return b;
    return NULL;
}

API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *at) {
    pthread_mutex_lock(&lock);
    struct block *range = range_around(PTR(at));
    if (range) {
        range->backing->refs++;
        *out = range->backing->at;
    }
    pthread_mutex_unlock(&lock);
    return range ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
