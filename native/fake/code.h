/* Modules, libraries and kernels. Part of cuda.c. A library is a module, a kernel is a function: as in the driver, one
 * may be launched as the other. */

API cuModuleLoadData(CUmodule *out, const void *image) {
    NEED_CONTEXT;
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    return (*out = calloc(1, sizeof **out)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
API cuModuleLoad(CUmodule *out, const char *path) { return cuModuleLoadData(out, path); }
API cuModuleLoadFatBinary(CUmodule *out, const void *image) { return cuModuleLoadData(out, image); }
API cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int n, int *options, void **values) { return (void)n, (void)options, (void)values, cuModuleLoadData(out, image); }

static void free_functions(CUmodule module) {
    while (module->functions) {
        CUfunction gone = module->functions;
        module->functions = gone->next;
        free(gone->name);
        free(gone);
    }
}
API cuModuleUnload(CUmodule module) {
    free_functions(module);
    return free(module), CUDA_SUCCESS;
}
API cuModuleGetLoadingMode(int *out) { return *out = 2, CUDA_SUCCESS; }

/* 250us and the like in ns; 0 for nothing. */
static uint64_t time_of(const char *text) {
    char *unit;
    uint64_t ns = text ? strtoull(text, &unit, 10) : 0;
    return ns * (!ns || *unit == 'n' ? 1 : *unit == 'u' ? 1000 : *unit == 'm' ? 1000000 : *unit == 's' ? 1000000000 : 1);
}

static void increment(void **params, const unsigned grid[3], const unsigned block[3]) {
    (void)grid, (void)block;
    for (int i = 0, *p = (int *)(uintptr_t) * (CUdeviceptr *)params[0]; i < *(int *)params[1]; i++)
        p[i]++;
}

/* The C function of this name in the file CARPOOL_STUB_KERNELS names, if there is one. */
static kernel_body body_of(const char *name) {
    static void *_Atomic library;
    if (strcmp(name, "increment") == 0)
        return increment;
    const char *path = getenv("CARPOOL_STUB_KERNELS");
    if (path && !atomic_load(&library))
        atomic_store(&library, dlopen(path, RTLD_NOW | RTLD_LOCAL));
    void *found = path && atomic_load(&library) ? dlsym(atomic_load(&library), name) : NULL;
    kernel_body body;
    memcpy(&body, &found, sizeof body);
    return body;
}

API cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    CUfunction made = calloc(1, sizeof *made);
    if (!made || !(made->name = strdup(name))) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->is_by_block = strncmp(name, "each_", 5) == 0;
    made->is_told = strcmp(name, "told") == 0;
    made->ns = time_of(strncmp(name, "busy_", 5) == 0 || made->is_by_block ? name + 5 : getenv("CARPOOL_STUB_KERNEL"));
    made->load_ns = time_of(getenv("CARPOOL_STUB_LOAD"));
    made->body = body_of(name);
    made->is_fault = strcmp(name, "fault") == 0;
    made->module = module;
    pthread_mutex_lock(&lock);
    made->next = module->functions;
    module->functions = made;
    pthread_mutex_unlock(&lock);
    return *out = made, CUDA_SUCCESS;
}

#define OPTIONS int *jit, void **jit_values, unsigned int jit_count, int *options, void **values, unsigned int count
#define UNUSED_OPTIONS (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count
API cuLibraryLoadData(CUmodule *out, const void *image, OPTIONS) { return UNUSED_OPTIONS, cuModuleLoadData(out, image); }
API cuLibraryLoadFromFile(CUmodule *out, const char *path, OPTIONS) { return UNUSED_OPTIONS, cuModuleLoadData(out, path); }
API cuLibraryUnload(CUmodule library) { return cuModuleUnload(library); }
API cuLibraryGetKernel(CUfunction *out, CUmodule library, const char *name) { return cuModuleGetFunction(out, library, name); }
API cuLibraryGetModule(CUmodule *out, CUmodule library) { return *out = library, CUDA_SUCCESS; }
API cuKernelGetFunction(CUfunction *out, CUfunction kernel) { return *out = kernel, CUDA_SUCCESS; }
API cuKernelGetName(const char **out, CUfunction kernel) { return *out = kernel->name, CUDA_SUCCESS; }
API cuKernelGetLibrary(CUmodule *out, CUfunction kernel) { return *out = kernel->module, CUDA_SUCCESS; }
API cuFuncGetName(const char **out, CUfunction f) { return *out = f->name, CUDA_SUCCESS; }
API cuFuncGetModule(CUmodule *out, CUfunction f) { return *out = f->module, CUDA_SUCCESS; }
API cuFuncGetAttribute(int *out, int which, CUfunction f) {
    (void)f;
    *out = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK                                       ? 1024
           : which == CU_FUNC_ATTRIBUTE_NUM_REGS                                                  ? 16
           : which == CU_FUNC_ATTRIBUTE_PTX_VERSION || which == CU_FUNC_ATTRIBUTE_BINARY_VERSION ? 80
                                                                                                  : 0;
    return CUDA_SUCCESS;
}
API cuKernelGetAttribute(int *out, int which, CUfunction kernel, CUdevice dev) { return (void)dev, cuFuncGetAttribute(out, which, kernel); }
API cuFuncSetAttribute(CUfunction f, int which, int value) { return (void)f, (void)which, (void)value, CUDA_SUCCESS; }
API cuKernelSetAttribute(int which, int value, CUfunction kernel, CUdevice dev) { return (void)which, (void)value, (void)kernel, (void)dev, CUDA_SUCCESS; }
API cuFuncSetCacheConfig(CUfunction f, int config) { return (void)f, (void)config, CUDA_SUCCESS; }
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction f, int block, size_t shared) {
    (void)f, (void)shared;
    return *out = block > 0 && block <= 1024 ? 2048 / block : 0, CUDA_SUCCESS;
}
API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, CUfunction f, int block, size_t shared, unsigned int flags) { return (void)flags, cuOccupancyMaxActiveBlocksPerMultiprocessor(out, f, block, shared); }
API cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f, size_t (*shared_of)(int), size_t shared, int most) {
    (void)f, (void)shared_of, (void)shared;
    return *block = most > 0 && most < 1024 ? most : 1024, *grid = 216, CUDA_SUCCESS;
}
