/* Somebody else's preloaded library, for tests/native/test_meter.py.
 * As it is: a tracer that hands every call on. With -DGREEDY: an allocator that serves everything itself.
 * Threads: any; lock: none. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#ifdef GREEDY
static _Alignas(64) unsigned char heap[64 << 20];
static atomic_size_t used;

void *malloc(size_t size) {
    size_t start = atomic_fetch_add(&used, (size + 127) & ~(size_t)63);
    if (start + size + 64 > sizeof heap)
        return NULL;
    memcpy(heap + start, &size, sizeof size);
    return heap + start + 64;
}
void free(void *block) { (void)block; }
void *calloc(size_t count, size_t each) { return malloc(count * each); }
void *realloc(void *old, size_t size) {
    unsigned char *block = malloc(size);
    size_t before = 0;
    if (old)
        memcpy(&before, (unsigned char *)old - 64, sizeof before);
    for (size_t byte = 0; block && byte < before && byte < size; byte++)
        block[byte] = ((unsigned char *)old)[byte];
    return block;
}
#else
void *malloc(size_t size) { return ((void *(*)(size_t))dlsym(RTLD_NEXT, "malloc"))(size); }
void free(void *block) { ((void (*)(void *))dlsym(RTLD_NEXT, "free"))(block); }
void *realloc(void *old, size_t size) {
    return ((void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc"))(old, size);
}
#endif
