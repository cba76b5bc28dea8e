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
    uint64_t row_busy_ns[ROWS], rows_at_ns; /* and that of processes */
};

static struct nvmlDevice_st cards[CARDS_MAX];
static uint64_t reserved_bytes;
static bool is_rare; /* partitions with protected memory; accounts are kept of processes, which also draw and are served */

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
    const char *reserved = getenv("CARPOOL_STUB_RESERVED");
    char *end;
    reserved_bytes = reserved ? parse_size(reserved, &end) : 0;
    is_rare = getenv("CARPOOL_STUB_RARE") != NULL;
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

/* Facts that monitors show. What is not answered here is "not supported", which they take for an empty cell. */
API nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out) {
    NEED(device);
    *out = (nvmlPciInfo_t){.bus = device->card + 1};
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "0000:%02X:00.0", out->bus);
    snprintf(out->busId, sizeof out->busId, "00000000:%02X:00.0", out->bus);
    return NVML_SUCCESS;
}
API nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *out) {
    NEED(out);
    unsigned domain, bus;
    if (sscanf(text, "%x:%x", &domain, &bus) != 2 || bus < 1 || bus > books->cards)
        return NVML_ERROR_NOT_FOUND;
    return *out = &cards[bus - 1], NVML_SUCCESS;
}
API nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *out) { return nvmlDeviceGetHandleByPciBusId_v2(text, out); }
API nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *out) {
    NEED(device);
    return *out = device->card, NVML_SUCCESS;
}
API nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    NEED(device);
    return *major = 8, *minor = 0, NVML_SUCCESS;
}
API nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *out) {
    NEED(device);
    return *out = NVML_COMPUTEMODE_DEFAULT, NVML_SUCCESS;
}
/* In no fabric. A version is the structure's size and, above it, a number. */
API nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *out) {
    NEED(device);
    unsigned int version = out->version, size = version & 0xffffff;
    if (size != sizeof *out && size != sizeof(nvmlGpuFabricInfo_v2_t))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memset(out, 0, size);
    return out->version = version, NVML_SUCCESS;
}
API nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *out) {
    NEED(device);
    return *out = 108 * 64, NVML_SUCCESS;
}

/* What the card keeps for itself is on top of what programs can have; CUDA does not show it, the first form here says
 * it is used. */
API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    NEED(device);
    if (!books_lock())
        return NVML_ERROR_NOT_FOUND;
    books_bury();
    out->used = books_used(device->card);
    books_unlock();
    out->free = books->card_bytes - out->used;
    out->reserved = reserved_bytes;
    out->total = books->card_bytes + reserved_bytes;
    return NVML_SUCCESS;
}
API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
    nvmlMemory_v2_t newer;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo_v2(device, &newer);
    if (result == NVML_SUCCESS)
        *out = (nvmlMemory_t){.total = newer.total, .free = newer.free, .used = newer.used + newer.reserved};
    return result;
}

/* The host sees all of a card, and has mapped none of it. */
API nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out) {
    NEED(device);
    return *out = (nvmlBAR1Memory_t){.bar1Total = books->card_bytes, .bar1Free = books->card_bytes}, NVML_SUCCESS;
}
/* No group of processes has a limit here. */
API nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *out) {
    nvmlMemory_v2_t memory;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo_v2(device, &memory);
    if (result == NVML_SUCCESS)
        *out = (nvmlGetMemoryLimits_v1_t){
            .nameSpace = out->nameSpace, .hardLimit = NVML_DEVICE_MEMORY_LIMIT_MAX, .currentUsed = memory.used};
    return result;
}

/* What only some cards answer. */

#define NEED_RARE(device)                    \
    do {                                     \
        NEED(device);                        \
        if (!is_rare)                        \
            return NVML_ERROR_NOT_SUPPORTED; \
    } while (0)

/* A partition that is the whole card. */
API nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out) {
    NEED_RARE(device);
    *out = (nvmlDeviceAttributes_t){.multiprocessorCount = 108,
                                    .gpuInstanceSliceCount = 7,
                                    .computeInstanceSliceCount = 7,
                                    .memorySizeMB = books->card_bytes >> 20};
    return NVML_SUCCESS;
}
API nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *out) { return nvmlDeviceGetAttributes_v2(device, out); }

/* The only profile is that of the whole card. */
API nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_t *out) {
    NEED_RARE(device);
    if (profile)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (nvmlGpuInstanceProfileInfo_t){
        .sliceCount = 7, .instanceCount = 1, .multiprocessorCount = 108, .memorySizeMB = books->card_bytes >> 20};
    return NVML_SUCCESS;
}
API nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *out) {
    nvmlGpuInstanceProfileInfo_t first;
    nvmlReturn_t result = nvmlDeviceGetGpuInstanceProfileInfo(device, profile, &first);
    unsigned int version = out->version, size = version & 0xffffff;
    if (result != NVML_SUCCESS)
        return result;
    if (size == sizeof(nvmlGpuInstanceProfileInfo_v3_t))
        *(nvmlGpuInstanceProfileInfo_v3_t *)out =
            (nvmlGpuInstanceProfileInfo_v3_t){.version = version, .memorySizeMB = first.memorySizeMB, .name = "whole"};
    else if (size == sizeof *out)
        *out = (nvmlGpuInstanceProfileInfo_v2_t){.version = version, .memorySizeMB = first.memorySizeMB, .name = "whole"};
    else
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return NVML_SUCCESS;
}
API nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id, nvmlGpuInstanceProfileInfo_v2_t *out) { return nvmlDeviceGetGpuInstanceProfileInfoV(device, id, out); }

/* A quarter of the card is open to the host, and programs' memory is in the rest. */
static uint64_t protected_bytes(void) { return books->card_bytes - books->card_bytes / 4; }

API nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *out) {
    NEED_RARE(device);
    uint64_t open_bytes = books->card_bytes - protected_bytes();
    *out = (nvmlConfComputeMemSizeInfo_t){protected_bytes() >> 10, open_bytes >> 10};
    return NVML_SUCCESS;
}
API nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *out) {
    NEED_RARE(device);
    nvmlMemory_v2_t memory = {0};
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo_v2(device, &memory);
    uint64_t whole = protected_bytes(), used = memory.used < whole ? memory.used : whole;
    if (result == NVML_SUCCESS)
        *out = (nvmlMemory_t){.total = whole, .free = whole - used, .used = used};
    return result;
}

/* Accounts are kept of those who live. */
API nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *out) {
    NEED_RARE(device);
    nvmlReturn_t result = NVML_ERROR_NOT_FOUND;
    if (!books_lock())
        return result;
    books_bury();
    for (unsigned r = 0; r < ROWS; r++)
        if (out->pid && books->row[r].pid == out->pid) {
            uint64_t peak = books->row[r].card[device->card].peak;
            *out = (nvmlAccountingStats_v2_t){.pid = out->pid, .isRunning = 1, .maxMemoryUsage = peak};
            result = NVML_SUCCESS;
        }
    books_unlock();
    return result;
}
API nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *out) {
    nvmlAccountingStats_v2_t newer = {.pid = pid};
    nvmlReturn_t result = nvmlDeviceGetAccountingStats_v2(device, &newer);
    if (result == NVML_SUCCESS)
        *out = (nvmlAccountingStats_t){.isRunning = 1, .maxMemoryUsage = newer.maxMemoryUsage};
    return result;
}

API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out) {
    NEED(device);
    uint64_t now = card_now_ns(device->card), idle = atomic_load(&books->idle_at_ns[device->card]);
    uint64_t busy = atomic_load(&books->busy_ns[device->card]) - (idle > now ? idle - now : 0);
    bool is_later = device->at_ns && now > device->at_ns && busy > device->busy_ns;
    uint64_t share = is_later ? (busy - device->busy_ns) * 100 / (now - device->at_ns) : 0;
    device->busy_ns = busy;
    device->at_ns = now;
    *out = (nvmlUtilization_t){.gpu = share > 100 ? 100 : (unsigned)share};
    return NVML_SUCCESS;
}

/* Samples are stamped with the wall clock: limiters of other libraries compare them with times of their own. */
static unsigned long long wall_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000u;
}

/* How busy each process kept the card since this was last asked, at the first time since its start. */
API nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned int *count, unsigned long long since) {
    (void)since;
    NEED(device);
    unsigned found = 0, room = out ? *count : 0;
    uint64_t now = now_ns(), passed = device->rows_at_ns ? now - device->rows_at_ns : 1000000000u;
    if (!books_lock())
        return NVML_ERROR_NOT_FOUND;
    books_bury();
    for (unsigned r = 0; r < ROWS; r++) {
        uint64_t busy = books->row[r].card[device->card].busy_ns, before = device->row_busy_ns[r];
        if (!books->row[r].pid || !busy)
            continue;
        if (found < room) {
            uint64_t share = (busy > before ? busy - before : 0) * 100 / (passed ? passed : 1);
            out[found] = (nvmlProcessUtilizationSample_t){
                .pid = (unsigned)books->row[r].pid, .timeStamp = wall_us(), .smUtil = share > 100 ? 100 : (unsigned)share};
            device->row_busy_ns[r] = busy;
        }
        found++;
    }
    books_unlock();
    *count = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    return device->rows_at_ns = now, found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* With `size` bytes an entry: the versions differ in what follows pid and bytes, and each begins as the one before. */
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
            nvmlProcessDetail_v1_t info = {.pid = (unsigned)books->row[r].pid,
                                           .usedGpuMemory = books->row[r].card[device->card].bytes,
                                           .gpuInstanceId = ~0u,
                                           .computeInstanceId = ~0u,
                                           .usedGpuCcProtectedMemory = is_rare ? books->row[r].card[device->card].bytes : 0};
            memcpy(out + found * size, &info, size);
        }
        found++;
    }
    books_unlock();
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
/* Of those who draw, or run through a shared server: nobody, or everybody. */
static nvmlReturn_t list_rare(nvmlDevice_t device, unsigned int *count, char *out, size_t size) {
    if (is_rare)
        return list(device, count, out, size);
    return *count = 0, NVML_SUCCESS;
}

API nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v1_t *out) { return list(d, n, (char *)out, sizeof *out); }
API nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v2_t *out) { return list(d, n, (char *)out, sizeof *out); }
API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *out) { return list(d, n, (char *)out, sizeof *out); }
API nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v1_t *out) { return list_rare(d, n, (char *)out, sizeof *out); }
API nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v2_t *out) { return list_rare(d, n, (char *)out, sizeof *out); }
API nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *out) { return list_rare(d, n, (char *)out, sizeof *out); }
API nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v1_t *out) { return list_rare(d, n, (char *)out, sizeof *out); }
API nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v2_t *out) { return list_rare(d, n, (char *)out, sizeof *out); }
API nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *out) { return list_rare(d, n, (char *)out, sizeof *out); }

API nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t d, nvmlProcessDetailList_t *out) {
    NEED(d);
    if ((out->version & 0xffffff) != sizeof *out)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    bool is_compute = out->mode == NVML_PROCESS_MODE_COMPUTE || out->mode == NVML_PROCESS_MODE_ALL;
    return (is_compute ? list : list_rare)(d, &out->numProcArrayEntries, (char *)out->procArray, sizeof *out->procArray);
}

#define ABSENT_NVML(symbol) \
    API symbol(void) { return NVML_ERROR_NOT_SUPPORTED; }
#include "doors.def"
