/* User objects: what a program wants destroyed with the last graph that uses it. Part of cuda.c, before the graphs. */

struct CUuserObject_st {
    void *what;
    void (*destroy)(void *);
    unsigned refs;
};
struct keep {
    CUuserObject object;
    unsigned refs;
    struct keep *next;
};

API cuUserObjectCreate(CUuserObject *out, void *what, void (*destroy)(void *), unsigned int refs, unsigned int flags) {
    (void)flags;
    if (!(*out = calloc(1, sizeof **out)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    **out = (struct CUuserObject_st){.what = what, .destroy = destroy, .refs = refs};
    return CUDA_SUCCESS;
}
API cuUserObjectRetain(CUuserObject object, unsigned int count) {
    pthread_mutex_lock(&lock);
    object->refs += count;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
API cuUserObjectRelease(CUuserObject object, unsigned int count) {
    pthread_mutex_lock(&lock);
    bool is_last = object->refs <= count;
    object->refs -= is_last ? object->refs : count;
    pthread_mutex_unlock(&lock);
    if (is_last) {
        object->destroy(object->what);
        free(object);
    }
    return CUDA_SUCCESS;
}

static CUresult keep_object(struct keep **list, CUuserObject object, unsigned refs) {
    struct keep *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct keep){.object = object, .refs = refs, .next = *list};
    return *list = made, CUDA_SUCCESS;
}
static void drop_objects(struct keep *list) {
    while (list) {
        struct keep *next = list->next;
        cuUserObjectRelease(list->object, list->refs);
        free(list);
        list = next;
    }
}

API cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags) {
    if (!(flags & 1)) /* not the caller's own references moving over */
        cuUserObjectRetain(object, count);
    return keep_object(&graph->objects, object, count);
}
API cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) {
    for (struct keep **k = &graph->objects; *k; k = &(*k)->next)
        if ((*k)->object == object && (*k)->refs >= count) {
            struct keep *gone = *k;
            if (!(gone->refs -= count)) {
                *k = gone->next;
                free(gone);
            }
            return cuUserObjectRelease(object, count);
        }
    return CUDA_ERROR_INVALID_VALUE;
}
