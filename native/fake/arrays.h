/* Arrays. Part of cuda.c. They lie in tiles, as in Mesa's driver for these cards (src/nouveau/nil, "tiling"): rows of
 * 64 bytes, eight of them at least, 256 rows and, in a volume, 32 slices of it at most, but less than twice the level. A layer's levels
 * follow each other; whole pages of 64 KiB are taken. */

enum { ROW_BYTES = 64, ROWS_MIN = 8, ROWS_MAX = 256, SLICES_MAX = 32, LAYER_STEP = 16384, PAGE_STEP = 65536 };

/* One of the planes of a format: bytes of a sample, how many elements share one each way. */
struct plane {
    unsigned bytes, wide, high;
};
struct format {
    int from, to; /* values of CUarray_format */
    bool is_channel; /* of each channel, not of all of them */
    struct plane planes[3];
};
static const struct format formats[] = {
    {0x01, 0x01, true, {{1, 1, 1}}},  {0x08, 0x08, true, {{1, 1, 1}}},                                    /* 8 bits */
    {0x02, 0x02, true, {{2, 1, 1}}},  {0x09, 0x09, true, {{2, 1, 1}}},  {0x10, 0x10, true, {{2, 1, 1}}},  /* 16 */
    {0x03, 0x03, true, {{4, 1, 1}}},  {0x0a, 0x0a, true, {{4, 1, 1}}},  {0x20, 0x20, true, {{4, 1, 1}}},  /* 32 */
    {0x50, 0x50, false, {{4, 1, 1}}},                                                                     /* 10, 10, 10, 2 */
    {0x91, 0x92, false, {{8, 4, 4}}}, {0x97, 0x98, false, {{8, 4, 4}}},                                   /* BC1, BC4 */
    {0x93, 0x96, false, {{16, 4, 4}}}, {0x99, 0x9e, false, {{16, 4, 4}}},                                 /* the other BC */
    {0x9f, 0x9f, false, {{2, 1, 1}, {4, 2, 2}}}, {0xa1, 0xa1, false, {{2, 1, 1}, {4, 2, 2}}},             /* P010, P016 */
    {0xa2, 0xa2, false, {{1, 1, 1}, {2, 2, 1}}},                                                          /* NV16 */
    {0xa3, 0xa4, false, {{2, 1, 1}, {4, 2, 1}}},                                                          /* P210, P216 */
    {0xa5, 0xa5, false, {{2, 1, 1}}}, {0xa6, 0xa7, false, {{4, 1, 1}}},                                   /* YUY2, Y210, Y216 */
    {0xa8, 0xa9, false, {{4, 1, 1}}}, {0xb1, 0xb1, false, {{8, 1, 1}}},                                   /* AYUV, Y410, Y416 */
    {0xb0, 0xb0, false, {{1, 1, 1}, {2, 2, 2}}},                                                          /* NV12 */
    {0xb2, 0xb2, false, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}},                                               /* three planes of 8 */
    {0xb3, 0xb3, false, {{2, 1, 1}, {2, 1, 1}, {2, 1, 1}}},                                               /* three of 10 */
    {0xb4, 0xb4, false, {{1, 1, 1}, {2, 1, 1}}}, {0xb5, 0xb5, false, {{2, 1, 1}, {4, 1, 1}}},             /* a plane and a pair */
    {0xc0, 0xc0, false, {{1, 1, 1}}}, {0xc1, 0xc1, false, {{2, 1, 1}}}, {0xc2, 0xc2, false, {{4, 1, 1}}}, /* normalized 8 */
    {0xc3, 0xc3, false, {{2, 1, 1}}}, {0xc4, 0xc4, false, {{4, 1, 1}}}, {0xc5, 0xc5, false, {{8, 1, 1}}}, /* and 16 */
    {0xc6, 0xc6, false, {{1, 1, 1}}}, {0xc7, 0xc7, false, {{2, 1, 1}}}, {0xc8, 0xc8, false, {{4, 1, 1}}}, /* with a sign */
    {0xc9, 0xc9, false, {{2, 1, 1}}}, {0xca, 0xca, false, {{4, 1, 1}}}, {0xcb, 0xcb, false, {{8, 1, 1}}},
};

static const struct format *format_of(CUarray_format wanted) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (wanted >= formats[i].from && wanted <= formats[i].to)
            return &formats[i];
    return NULL;
}

/* To whole tiles, which are powers of two: the largest that is less than twice the extent, `most` at most. */
static size_t tiled(size_t extent, size_t most) {
    size_t tile = 1;
    while (tile < extent && tile < most)
        tile *= 2;
    return round_up(extent, tile);
}

static size_t minified(size_t extent, unsigned level) { return extent >> level ? extent >> level : 1; }

static size_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, const struct format *f, unsigned level, bool has_layers) {
    size_t bytes = 0, slices = has_layers ? 1 : tiled(minified(d->Depth, level), SLICES_MAX);
    for (const struct plane *p = f->planes; p < f->planes + 3 && p->bytes; p++) {
        size_t wide = round_up(minified(d->Width, level), p->wide) / p->wide;
        size_t high = round_up(minified(d->Height, level), p->high) / p->high;
        size_t row_bytes = round_up(wide * p->bytes * (f->is_channel ? d->NumChannels : 1), ROW_BYTES);
        bytes += row_bytes * tiled(high < ROWS_MIN ? ROWS_MIN : high, ROWS_MAX) * slices;
    }
    return bytes;
}

/* What an array takes, or would take if it had memory of its own; 0 for a format that there is not. */
static size_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
    const struct format *f = format_of(d->Format);
    bool has_layers = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    size_t bytes = 0, largest = d->Width | d->Height | d->Depth; /* or some number with as many bits */
    for (unsigned level = 0; f && (level == 0 || (level < levels && largest >> level)); level++)
        bytes += level_bytes(d, f, level, has_layers);
    return round_up(round_up(bytes, LAYER_STEP) * (has_layers && d->Depth ? d->Depth : 1), PAGE_STEP);
}

static CUresult make_array(void **out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels, enum kind kind) {
    size_t whole = out && d && d->Width ? array_bytes(d, levels) : 0;
    bool is_empty = whole && d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
    bool is_deferred = whole && d->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (!whole)
        return CUDA_ERROR_INVALID_VALUE;
    const struct format *f = format_of(d->Format);
    const struct plane *p = &f->planes[0]; /* copies know no others */
    struct block shape = {.element = p->bytes * (f->is_channel ? d->NumChannels : 1)};
    shape.line = round_up(d->Width, p->wide) / p->wide * shape.element;
    shape.lines = round_up(minified(d->Height, 0), p->high) / p->high;
    shape.slices = minified(d->Depth, 0);
    return hold(out, is_empty ? 0 : whole, is_deferred ? whole : 0, kind, &shape);
}
API cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d) { return make_array((void **)out, d, 1, ARRAY); }

API cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
    CUDA_ARRAY3D_DESCRIPTOR full = {.Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels};
    return cuArray3DCreate_v2(out, &full);
}

API cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels) { return make_array((void **)out, d, levels, MIPMAP); }
API cuArrayDestroy(CUarray array) { return release(PTR(array), ARRAY); }
API cuMipmappedArrayDestroy(CUmipmappedArray array) { return release(PTR(array), MIPMAP); }

/* Said only of arrays whose memory is mapped later. */
static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, void *array, enum kind kind) {
    pthread_mutex_lock(&lock);
    struct block *b = *find(PTR(array), kind);
    bool is_deferred = b && b->whole;
    if (is_deferred)
        *out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = b->whole, .alignment = PAGE_STEP};
    pthread_mutex_unlock(&lock);
    return is_deferred ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice dev) { return (void)dev, requirements(out, array, ARRAY); }
API cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray array, CUdevice dev) { return (void)dev, requirements(out, array, MIPMAP); }
