/* A stand-in for libnvidia-ml.so.1: what the stand-in driver's books say, for monitors and for carpool's own daemon.
 * As in the real library, CUDA_VISIBLE_DEVICES means nothing here: all cards are shown.
 *
 * Threads: any. Lock: the file lock of books.h. */
#define _GNU_SOURCE
#include "books.h"

#include "../driver.h"

#define API __attribute__((visibility("default"))) nvmlReturn_t

struct nvmlDevice_st {
    unsigned card;
    uint64_t busy_ns, at_ns; /* when the utilisation was last asked for */
};

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

static struct nvmlDevice_st cards[CARDS_MAX];

#define NEED(device)                         \
    do {                                     \
        if (!books)                          \
            return NVML_ERROR_UNINITIALIZED; \
        if (!(device))                       \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

API nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    if (!books_open())
        return NVML_ERROR_NOT_FOUND;
    for (unsigned i = 0; i < CARDS_MAX; i++)
        cards[i].card = i;
    return NVML_SUCCESS;
}
API nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlInit(void) { return nvmlInitWithFlags(0); }
API nvmlShutdown(void) { return NVML_SUCCESS; }

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result) {
    return result == NVML_SUCCESS ? "Success" : result == NVML_ERROR_NOT_SUPPORTED ? "Not Supported" : "Unknown Error";
}

static nvmlReturn_t text(char *out, unsigned int size, const char *what) {
    if (strlen(what) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    return strcpy(out, what), NVML_SUCCESS;
}
API nvmlSystemGetDriverVersion(char *out, unsigned int size) { return text(out, size, "580.00"); }
API nvmlSystemGetNVMLVersion(char *out, unsigned int size) { return text(out, size, "13.580.00"); }
API nvmlSystemGetCudaDriverVersion(int *out) { return *out = 13000, NVML_SUCCESS; }
API nvmlSystemGetCudaDriverVersion_v2(int *out) { return *out = 13000, NVML_SUCCESS; }

API nvmlDeviceGetCount_v2(unsigned int *out) {
    NEED(out);
    return *out = (unsigned)books->cards, NVML_SUCCESS;
}
API nvmlDeviceGetCount(unsigned int *out) { return nvmlDeviceGetCount_v2(out); }

API nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *out) {
    NEED(out);
    if (index >= books->cards)
        return NVML_ERROR_INVALID_ARGUMENT;
    return *out = &cards[index], NVML_SUCCESS;
}
API nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }

API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
    NEED(out);
    char own[64];
    for (unsigned i = 0; i < books->cards; i++) {
        card_uuid_text(i, own);
        if (strcmp(own, uuid) == 0)
            return *out = &cards[i], NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *out) {
    NEED(device);
    return *out = device->card, NVML_SUCCESS;
}
API nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned int size) {
    NEED(device);
    return text(out, size, "carpool stand-in GPU");
}
API nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned int size) {
    NEED(device);
    char own[64];
    card_uuid_text(device->card, own);
    return text(out, size, own);
}

API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
    NEED(device);
    if (!books_lock())
        return NVML_ERROR_NOT_FOUND;
    books_bury();
    uint64_t used = books_used(device->card);
    books_unlock();
    *out = (nvmlMemory_t){.total = books->card_bytes, .free = books->card_bytes - used, .used = used};
    return NVML_SUCCESS;
}
API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    nvmlMemory_t plain;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result == NVML_SUCCESS) {
        out->total = plain.total;
        out->free = plain.free;
        out->used = plain.used;
        out->reserved = 0;
    }
    return result;
}

API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out) {
    NEED(device);
    uint64_t now = now_ns(), idle = atomic_load(&books->idle_at_ns[device->card]);
    uint64_t busy = atomic_load(&books->busy_ns[device->card]) - (idle > now ? idle - now : 0);
    uint64_t share = device->at_ns && now > device->at_ns ? (busy - device->busy_ns) * 100 / (now - device->at_ns) : 0;
    device->busy_ns = busy;
    device->at_ns = now;
    *out = (nvmlUtilization_t){.gpu = share > 100 ? 100 : (unsigned)share};
    return NVML_SUCCESS;
}

/* With `size` bytes an entry: the versions differ in what follows pid and bytes. */
static nvmlReturn_t list(nvmlDevice_t device, unsigned int *count, char *out, size_t size) {
    NEED(device);
    unsigned room = *count, found = 0;
    if (!books_lock())
        return NVML_ERROR_NOT_FOUND;
    books_bury();
    for (unsigned r = 0; r < ROWS; r++) {
        if (!books->row[r].pid || !books->row[r].card[device->card].bytes)
            continue;
        if (found < room && out) {
            nvmlProcessInfo_t info = {.pid = (unsigned)books->row[r].pid,
                                      .usedGpuMemory = books->row[r].card[device->card].bytes,
                                      .gpuInstanceId = ~0u,
                                      .computeInstanceId = ~0u};
            memcpy(out + found * size, &info, size);
        }
        found++;
    }
    books_unlock();
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
API nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v1_t *out) { return list(d, n, (char *)out, sizeof *out); }
API nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *out) { return list(d, n, (char *)out, sizeof *out); }
API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *out) { return list(d, n, (char *)out, sizeof *out); }
