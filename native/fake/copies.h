/* Copies of all kinds, fills and prefetches. Part of cuda.c.
 *
 * All are real, and are done when the call returns; those that block wait first for what the default stream has to do. What an
 * array holds lies here line by line, whatever tiles its bytes were counted in. */

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s) {
    NEED_CONTEXT;
    if (s == NULL)
        wait_for(&default_stream[context()->device]);
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}
API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n) { return copy(to, PTR(from), n, NULL); }
API cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t n) { return copy(to, PTR(from), n, NULL); }
API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n) { return copy(PTR(to), from, n, NULL); }
API cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t n) { return copy(PTR(to), from, n, NULL); }
API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) { return copy(to, from, n, NULL); }
API cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t n) { return copy(to, from, n, NULL); }
API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n) { return copy(to, from, n, NULL); }
API cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t n) { return copy(to, from, n, NULL); }
API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, CUstream s) { return copy(to, PTR(from), n, stream_of(s)); }
API cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t n, CUstream s) { return copy(to, PTR(from), n, stream_of(s)); }
API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, CUstream s) { return copy(PTR(to), from, n, stream_of(s)); }
API cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t n, CUstream s) { return copy(PTR(to), from, n, stream_of(s)); }
API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { return copy(to, from, n, stream_of(s)); }
API cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { return copy(to, from, n, stream_of(s)); }
API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { return copy(to, from, n, stream_of(s)); }
API cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { return copy(to, from, n, stream_of(s)); }

/* Lines and volumes */

/* Where one side of a copy begins, and how far it is from line to line and from slice to slice. */
struct side {
    char *at;
    size_t line, slice;
};

/* The array's own lines. Its memory is had when it is first used: most tests only count it. */
static bool array_side(struct side *out, CUarray array, const size_t from[3], const size_t extent[3], size_t *element) {
    pthread_mutex_lock(&lock);
    struct block *b = *find(PTR(array), ARRAY);
    size_t whole = b ? b->line * b->lines * b->slices : 0;
    bool is_inside = whole && b->bytes && from[0] + extent[0] <= b->line && from[1] + extent[1] <= b->lines && from[2] + extent[2] <= b->slices;
    if (is_inside && !b->data) {
        void *data = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        b->data = data == MAP_FAILED ? NULL : data;
    }
    is_inside = is_inside && b->data;
    if (is_inside) {
        *out = (struct side){b->data + (from[2] * b->lines + from[1]) * b->line + from[0], b->line, b->line * b->lines};
        if (element)
            *element = b->element;
    }
    pthread_mutex_unlock(&lock);
    return is_inside;
}

static struct side plain_side(uint64_t at, const size_t from[3], size_t line, size_t lines) {
    return (struct side){(char *)(uintptr_t)at + (from[2] * lines + from[1]) * line + from[0], line, line * lines};
}

static CUresult copy_sides(struct side to, struct side from, const size_t extent[3], CUstream s) {
    NEED_CONTEXT;
    if (s == NULL)
        wait_for(&default_stream[context()->device]);
    for (size_t z = 0; z < extent[2]; z++)
        for (size_t y = 0; y < extent[1]; y++)
            memmove(to.at + z * to.slice + y * to.line, from.at + z * from.slice + y * from.line, extent[0]);
    return CUDA_SUCCESS;
}

/* A line of no length given is as long as what is copied; so is a slice. */
static bool find_side(struct side *out, CUmemorytype type, uint64_t host, CUdeviceptr device, CUarray array, size_t line, size_t lines, const size_t from[3], const size_t extent[3]) {
    if (type == CU_MEMORYTYPE_ARRAY)
        return array_side(out, array, from, extent, NULL);
    line = line ? line : extent[0];
    *out = plain_side(type == CU_MEMORYTYPE_HOST ? host : device, from, line, lines ? lines : extent[1]);
    return type >= CU_MEMORYTYPE_HOST && type <= CU_MEMORYTYPE_UNIFIED && (extent[1] == 1 || line >= from[0] + extent[0]);
}

static CUresult copy_shape(const CUDA_MEMCPY3D_PEER *c, CUstream s) {
    if (!c)
        return CUDA_ERROR_INVALID_VALUE;
    const size_t extent[3] = {c->WidthInBytes, c->Height, c->Depth};
    const size_t to_at[3] = {c->dstXInBytes, c->dstY, c->dstZ}, from_at[3] = {c->srcXInBytes, c->srcY, c->srcZ};
    struct side to, from;
    if (!find_side(&to, c->dstMemoryType, PTR(c->dstHost), c->dstDevice, c->dstArray, c->dstPitch, c->dstHeight, to_at, extent) ||
        !find_side(&from, c->srcMemoryType, PTR(c->srcHost), c->srcDevice, c->srcArray, c->srcPitch, c->srcHeight, from_at, extent))
        return CUDA_ERROR_INVALID_VALUE;
    return copy_sides(to, from, extent, s);
}

/* The fields that all forms have, as those of the largest one. */
#define LINES_OF(c)                                                                                                           \
    .srcXInBytes = (c)->srcXInBytes, .srcY = (c)->srcY, .srcMemoryType = (c)->srcMemoryType, .srcHost = (c)->srcHost,         \
    .srcDevice = (c)->srcDevice, .srcArray = (c)->srcArray, .srcPitch = (c)->srcPitch, .dstXInBytes = (c)->dstXInBytes,       \
    .dstY = (c)->dstY, .dstMemoryType = (c)->dstMemoryType, .dstHost = (c)->dstHost, .dstDevice = (c)->dstDevice,             \
    .dstArray = (c)->dstArray, .dstPitch = (c)->dstPitch, .WidthInBytes = (c)->WidthInBytes, .Height = (c)->Height
#define SLICES_OF(c) LINES_OF(c), .srcZ = (c)->srcZ, .srcHeight = (c)->srcHeight, .dstZ = (c)->dstZ, .dstHeight = (c)->dstHeight, .Depth = (c)->Depth
#define LINES(c) ((c) ? &(CUDA_MEMCPY3D_PEER){LINES_OF(c), .Depth = 1} : NULL)
#define SLICES(c) ((c) ? &(CUDA_MEMCPY3D_PEER){SLICES_OF(c)} : NULL)

API cuMemcpy2D_v2(const CUDA_MEMCPY2D *c) { return copy_shape(LINES(c), NULL); }
API cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *c) { return copy_shape(LINES(c), NULL); }
API cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *c) { return copy_shape(LINES(c), NULL); }
API cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *c) { return copy_shape(LINES(c), NULL); }
API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream s) { return copy_shape(LINES(c), stream_of(s)); }
API cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *c, CUstream s) { return copy_shape(LINES(c), stream_of(s)); }
API cuMemcpy2D(const CUDA_MEMCPY2D_v1 *c) { return copy_shape(LINES(c), NULL); }
API cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1 *c) { return copy_shape(LINES(c), NULL); }
API cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1 *c, CUstream s) { return copy_shape(LINES(c), stream_of(s)); }
API cuMemcpy3D_v2(const CUDA_MEMCPY3D *c) { return copy_shape(c, NULL); }
API cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *c) { return copy_shape(c, NULL); }
API cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *c, CUstream s) { return copy_shape(c, stream_of(s)); }
API cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *c, CUstream s) { return copy_shape(c, stream_of(s)); }
API cuMemcpy3D(const CUDA_MEMCPY3D_v1 *c) { return copy_shape(SLICES(c), NULL); }
API cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1 *c, CUstream s) { return copy_shape(SLICES(c), stream_of(s)); }
API cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *c) { return copy_shape(c, NULL); }
API cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER *c) { return copy_shape(c, NULL); }
API cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *c, CUstream s) { return copy_shape(c, stream_of(s)); }
API cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER *c, CUstream s) { return copy_shape(c, stream_of(s)); }

/* To, from and between the first lines of arrays */

enum { NO_ARRAY = 0 };
static CUresult copy_line(CUarray to_array, uint64_t to_at, CUarray from_array, uint64_t from_at, size_t bytes, CUstream s) {
    const size_t extent[3] = {bytes, 1, 1}, start[3] = {0}, to_start[3] = {to_at}, from_start[3] = {from_at};
    struct side to = plain_side(to_at, start, bytes, 1), from = plain_side(from_at, start, bytes, 1);
    if ((to_array && !array_side(&to, to_array, to_start, extent, NULL)) ||
        (from_array && !array_side(&from, from_array, from_start, extent, NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    return copy_sides(to, from, extent, s);
}
API cuMemcpyAtoA_v2(CUarray to, size_t at, CUarray from, size_t from_at, size_t n) { return copy_line(to, at, from, from_at, n, NULL); }
API cuMemcpyAtoA_v2_ptds(CUarray to, size_t at, CUarray from, size_t from_at, size_t n) { return copy_line(to, at, from, from_at, n, NULL); }
API cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t at, size_t n) { return copy_line(NO_ARRAY, to, from, at, n, NULL); }
API cuMemcpyAtoD_v2_ptds(CUdeviceptr to, CUarray from, size_t at, size_t n) { return copy_line(NO_ARRAY, to, from, at, n, NULL); }
API cuMemcpyDtoA_v2(CUarray to, size_t at, CUdeviceptr from, size_t n) { return copy_line(to, at, NO_ARRAY, from, n, NULL); }
API cuMemcpyDtoA_v2_ptds(CUarray to, size_t at, CUdeviceptr from, size_t n) { return copy_line(to, at, NO_ARRAY, from, n, NULL); }
API cuMemcpyAtoH_v2(void *to, CUarray from, size_t at, size_t n) { return copy_line(NO_ARRAY, PTR(to), from, at, n, NULL); }
API cuMemcpyAtoH_v2_ptds(void *to, CUarray from, size_t at, size_t n) { return copy_line(NO_ARRAY, PTR(to), from, at, n, NULL); }
API cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t at, size_t n, CUstream s) { return copy_line(NO_ARRAY, PTR(to), from, at, n, stream_of(s)); }
API cuMemcpyAtoHAsync_v2_ptsz(void *to, CUarray from, size_t at, size_t n, CUstream s) { return copy_line(NO_ARRAY, PTR(to), from, at, n, stream_of(s)); }
API cuMemcpyHtoA_v2(CUarray to, size_t at, const void *from, size_t n) { return copy_line(to, at, NO_ARRAY, PTR(from), n, NULL); }
API cuMemcpyHtoA_v2_ptds(CUarray to, size_t at, const void *from, size_t n) { return copy_line(to, at, NO_ARRAY, PTR(from), n, NULL); }
API cuMemcpyHtoAAsync_v2(CUarray to, size_t at, const void *from, size_t n, CUstream s) { return copy_line(to, at, NO_ARRAY, PTR(from), n, stream_of(s)); }
API cuMemcpyHtoAAsync_v2_ptsz(CUarray to, size_t at, const void *from, size_t n, CUstream s) { return copy_line(to, at, NO_ARRAY, PTR(from), n, stream_of(s)); }
API cuMemcpyAtoA(CUarray to, unsigned int at, CUarray from, unsigned int from_at, unsigned int n) { return copy_line(to, at, from, from_at, n, NULL); }
API cuMemcpyAtoD(CUdeviceptr_v1 to, CUarray from, unsigned int at, unsigned int n) { return copy_line(NO_ARRAY, to, from, at, n, NULL); }
API cuMemcpyDtoA(CUarray to, unsigned int at, CUdeviceptr_v1 from, unsigned int n) { return copy_line(to, at, NO_ARRAY, from, n, NULL); }
API cuMemcpyAtoH(void *to, CUarray from, unsigned int at, unsigned int n) { return copy_line(NO_ARRAY, PTR(to), from, at, n, NULL); }
API cuMemcpyAtoHAsync(void *to, CUarray from, unsigned int at, unsigned int n, CUstream s) { return copy_line(NO_ARRAY, PTR(to), from, at, n, stream_of(s)); }
API cuMemcpyHtoA(CUarray to, unsigned int at, const void *from, unsigned int n) { return copy_line(to, at, NO_ARRAY, PTR(from), n, NULL); }
API cuMemcpyHtoAAsync(CUarray to, unsigned int at, const void *from, unsigned int n, CUstream s) { return copy_line(to, at, NO_ARRAY, PTR(from), n, stream_of(s)); }
API cuMemcpyHtoD(CUdeviceptr_v1 to, const void *from, unsigned int n) { return copy(to, PTR(from), n, NULL); }
API cuMemcpyDtoH(void *to, CUdeviceptr_v1 from, unsigned int n) { return copy(PTR(to), from, n, NULL); }
API cuMemcpyDtoD(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int n) { return copy(to, from, n, NULL); }
API cuMemcpyHtoDAsync(CUdeviceptr_v1 to, const void *from, unsigned int n, CUstream s) { return copy(to, PTR(from), n, stream_of(s)); }
API cuMemcpyDtoHAsync(void *to, CUdeviceptr_v1 from, unsigned int n, CUstream s) { return copy(PTR(to), from, n, stream_of(s)); }
API cuMemcpyDtoDAsync(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int n, CUstream s) { return copy(to, from, n, stream_of(s)); }

/* Between devices: one address space has them all */

API cuMemcpyPeer(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t n) { return (void)a, (void)b, copy(to, from, n, NULL); }
API cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t n) { return (void)a, (void)b, copy(to, from, n, NULL); }
API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t n, CUstream s) { return (void)a, (void)b, copy(to, from, n, stream_of(s)); }
API cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t n, CUstream s) { return (void)a, (void)b, copy(to, from, n, stream_of(s)); }

/* Batches. They have a stream of their own: 0 is refused, as by the driver. */

static CUresult copy_batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count, size_t *failed, CUstream s) {
    if (failed)
        *failed = SIZE_MAX;
    CUresult result = !s || !to || !from || !sizes || !count ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (size_t i = 0; i < count && !result; i++)
        result = copy(to[i], from[i], sizes[i], stream_of(s));
    return result;
}
API cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t n, CUmemcpyAttributes *attrs, size_t *at, size_t attrs_count, size_t *failed, CUstream s) { return (void)attrs, (void)at, (void)attrs_count, copy_batch(to, from, sizes, n, failed, s); }
API cuMemcpyBatchAsync_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t n, CUmemcpyAttributes *attrs, size_t *at, size_t attrs_count, size_t *failed, CUstream s) { return (void)attrs, (void)at, (void)attrs_count, copy_batch(to, from, sizes, n, failed, s); }
API cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t n, CUmemcpyAttributes *attrs, size_t *at, size_t attrs_count, CUstream s) { return (void)attrs, (void)at, (void)attrs_count, copy_batch(to, from, sizes, n, NULL, s); }
API cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t n, CUmemcpyAttributes *attrs, size_t *at, size_t attrs_count, CUstream s) { return (void)attrs, (void)at, (void)attrs_count, copy_batch(to, from, sizes, n, NULL, s); }

/* Lengths are in elements: of the array, or bytes where there is none. */
static bool find_operand(struct side *out, const CUmemcpy3DOperand *o, size_t element, const size_t extent[3]) {
    const size_t from[3] = {o->op.array.offset.x * element, o->op.array.offset.y, o->op.array.offset.z}, start[3] = {0};
    if (o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
        return array_side(out, o->op.array.array, from, extent, NULL);
    size_t line = o->op.ptr.rowLength ? o->op.ptr.rowLength * element : extent[0];
    *out = plain_side(o->op.ptr.ptr, start, line, o->op.ptr.layerHeight ? o->op.ptr.layerHeight : extent[1]);
    return o->type == CU_MEMCPY_OPERAND_TYPE_POINTER && line >= extent[0];
}
static CUresult copy_operands(const CUDA_MEMCPY3D_BATCH_OP *op, CUstream s) {
    static const size_t nothing[3];
    struct side to, from;
    size_t element = 1;
    for (const CUmemcpy3DOperand *o = &op->src; o <= &op->dst; o++)
        if (o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY && !array_side(&to, o->op.array.array, nothing, nothing, &element))
            return CUDA_ERROR_INVALID_VALUE;
    const size_t extent[3] = {op->extent.width * element, op->extent.height, op->extent.depth};
    bool is_found = find_operand(&to, &op->dst, element, extent) && find_operand(&from, &op->src, element, extent);
    return is_found ? copy_sides(to, from, extent, s) : CUDA_ERROR_INVALID_VALUE;
}
static CUresult copy_shapes(size_t count, const CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, CUstream s) {
    if (failed)
        *failed = SIZE_MAX;
    CUresult result = !s || !list || !count ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (size_t i = 0; i < count && !result; i++)
        if ((result = copy_operands(&list[i], stream_of(s))) && failed)
            *failed = i;
    return result;
}
API cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags, CUstream s) { return (void)flags, copy_shapes(count, list, failed, s); }
API cuMemcpy3DBatchAsync_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags, CUstream s) { return (void)flags, copy_shapes(count, list, failed, s); }
API cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream s) { return (void)flags, copy_shapes(count, list, NULL, s); }
API cuMemcpy3DBatchAsync_v2_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream s) { return (void)flags, copy_shapes(count, list, NULL, s); }

API cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUmemcpyAttributes *attrs, CUstream s) { return (void)attrs, copy_batch(&to, &from, &n, 1, NULL, s); }
API cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t n, CUmemcpyAttributes *attrs, CUstream s) { return (void)attrs, copy_batch(&to, &from, &n, 1, NULL, s); }
API cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream s) { return (void)flags, copy_shapes(1, op, NULL, s); }
API cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream s) { return (void)flags, copy_shapes(1, op, NULL, s); }

/* Fills */

static CUresult fill(CUdeviceptr at, size_t line, uint32_t value, size_t bytes, size_t width, size_t height) {
    NEED_CONTEXT;
    if (at % bytes || (height > 1 && line < width * bytes))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t y = 0; y < height && bytes == 1; y++)
        memset((char *)(uintptr_t)at + y * line, (int)value, width);
    for (size_t y = 0; y < height && bytes > 1; y++)
        for (size_t x = 0; x < width; x++)
            memcpy((char *)(uintptr_t)at + y * line + x * bytes, &value, bytes); /* the low bytes come first */
    return CUDA_SUCCESS;
}
API cuMemsetD8_v2(CUdeviceptr at, unsigned char v, size_t n) { return fill(at, 0, v, 1, n, 1); }
API cuMemsetD8_v2_ptds(CUdeviceptr at, unsigned char v, size_t n) { return fill(at, 0, v, 1, n, 1); }
API cuMemsetD8Async(CUdeviceptr at, unsigned char v, size_t n, CUstream s) { return (void)s, fill(at, 0, v, 1, n, 1); }
API cuMemsetD8Async_ptsz(CUdeviceptr at, unsigned char v, size_t n, CUstream s) { return (void)s, fill(at, 0, v, 1, n, 1); }
API cuMemsetD8(CUdeviceptr_v1 at, unsigned char v, unsigned int n) { return fill(at, 0, v, 1, n, 1); }
API cuMemsetD16_v2(CUdeviceptr at, unsigned short v, size_t n) { return fill(at, 0, v, 2, n, 1); }
API cuMemsetD16_v2_ptds(CUdeviceptr at, unsigned short v, size_t n) { return fill(at, 0, v, 2, n, 1); }
API cuMemsetD16Async(CUdeviceptr at, unsigned short v, size_t n, CUstream s) { return (void)s, fill(at, 0, v, 2, n, 1); }
API cuMemsetD16Async_ptsz(CUdeviceptr at, unsigned short v, size_t n, CUstream s) { return (void)s, fill(at, 0, v, 2, n, 1); }
API cuMemsetD16(CUdeviceptr_v1 at, unsigned short v, unsigned int n) { return fill(at, 0, v, 2, n, 1); }
API cuMemsetD32_v2(CUdeviceptr at, unsigned int v, size_t n) { return fill(at, 0, v, 4, n, 1); }
API cuMemsetD32_v2_ptds(CUdeviceptr at, unsigned int v, size_t n) { return fill(at, 0, v, 4, n, 1); }
API cuMemsetD32Async(CUdeviceptr at, unsigned int v, size_t n, CUstream s) { return (void)s, fill(at, 0, v, 4, n, 1); }
API cuMemsetD32Async_ptsz(CUdeviceptr at, unsigned int v, size_t n, CUstream s) { return (void)s, fill(at, 0, v, 4, n, 1); }
API cuMemsetD32(CUdeviceptr_v1 at, unsigned int v, unsigned int n) { return fill(at, 0, v, 4, n, 1); }
API cuMemsetD2D8_v2(CUdeviceptr at, size_t line, unsigned char v, size_t w, size_t h) { return fill(at, line, v, 1, w, h); }
API cuMemsetD2D8_v2_ptds(CUdeviceptr at, size_t line, unsigned char v, size_t w, size_t h) { return fill(at, line, v, 1, w, h); }
API cuMemsetD2D8Async(CUdeviceptr at, size_t line, unsigned char v, size_t w, size_t h, CUstream s) { return (void)s, fill(at, line, v, 1, w, h); }
API cuMemsetD2D8Async_ptsz(CUdeviceptr at, size_t line, unsigned char v, size_t w, size_t h, CUstream s) { return (void)s, fill(at, line, v, 1, w, h); }
API cuMemsetD2D8(CUdeviceptr_v1 at, unsigned int line, unsigned char v, unsigned int w, unsigned int h) { return fill(at, line, v, 1, w, h); }
API cuMemsetD2D16_v2(CUdeviceptr at, size_t line, unsigned short v, size_t w, size_t h) { return fill(at, line, v, 2, w, h); }
API cuMemsetD2D16_v2_ptds(CUdeviceptr at, size_t line, unsigned short v, size_t w, size_t h) { return fill(at, line, v, 2, w, h); }
API cuMemsetD2D16Async(CUdeviceptr at, size_t line, unsigned short v, size_t w, size_t h, CUstream s) { return (void)s, fill(at, line, v, 2, w, h); }
API cuMemsetD2D16Async_ptsz(CUdeviceptr at, size_t line, unsigned short v, size_t w, size_t h, CUstream s) { return (void)s, fill(at, line, v, 2, w, h); }
API cuMemsetD2D16(CUdeviceptr_v1 at, unsigned int line, unsigned short v, unsigned int w, unsigned int h) { return fill(at, line, v, 2, w, h); }
API cuMemsetD2D32_v2(CUdeviceptr at, size_t line, unsigned int v, size_t w, size_t h) { return fill(at, line, v, 4, w, h); }
API cuMemsetD2D32_v2_ptds(CUdeviceptr at, size_t line, unsigned int v, size_t w, size_t h) { return fill(at, line, v, 4, w, h); }
API cuMemsetD2D32Async(CUdeviceptr at, size_t line, unsigned int v, size_t w, size_t h, CUstream s) { return (void)s, fill(at, line, v, 4, w, h); }
API cuMemsetD2D32Async_ptsz(CUdeviceptr at, size_t line, unsigned int v, size_t w, size_t h, CUstream s) { return (void)s, fill(at, line, v, 4, w, h); }
API cuMemsetD2D32(CUdeviceptr_v1 at, unsigned int line, unsigned int v, unsigned int w, unsigned int h) { return fill(at, line, v, 4, w, h); }

/* Prefetches: everything is on the host anyway */

static CUresult prefetch(CUdeviceptr at, size_t bytes) {
    NEED_CONTEXT;
    return at && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult prefetch_all(const CUdeviceptr *at, const size_t *sizes, size_t count, CUstream s) {
    CUresult result = !s || !at || !sizes || !count ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (size_t i = 0; i < count && !result; i++)
        result = prefetch(at[i], sizes[i]);
    return result;
}
API cuMemPrefetchAsync(CUdeviceptr at, size_t n, CUdevice to, CUstream s) { return (void)to, (void)s, prefetch(at, n); }
API cuMemPrefetchAsync_ptsz(CUdeviceptr at, size_t n, CUdevice to, CUstream s) { return (void)to, (void)s, prefetch(at, n); }
API cuMemPrefetchAsync_v2(CUdeviceptr at, size_t n, CUmemLocation to, unsigned int flags, CUstream s) { return (void)to, (void)flags, (void)s, prefetch(at, n); }
API cuMemPrefetchAsync_v2_ptsz(CUdeviceptr at, size_t n, CUmemLocation to, unsigned int flags, CUstream s) { return (void)to, (void)flags, (void)s, prefetch(at, n); }
API cuMemPrefetchBatchAsync(CUdeviceptr *at, size_t *sizes, size_t count, CUmemLocation *to, size_t *to_at, size_t to_count, unsigned long long flags, CUstream s) { return (void)to, (void)to_at, (void)to_count, (void)flags, prefetch_all(at, sizes, count, s); }
API cuMemPrefetchBatchAsync_ptsz(CUdeviceptr *at, size_t *sizes, size_t count, CUmemLocation *to, size_t *to_at, size_t to_count, unsigned long long flags, CUstream s) { return (void)to, (void)to_at, (void)to_count, (void)flags, prefetch_all(at, sizes, count, s); }
API cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *at, size_t *sizes, size_t count, CUmemLocation *to, size_t *to_at, size_t to_count, unsigned long long flags, CUstream s) { return (void)to, (void)to_at, (void)to_count, (void)flags, prefetch_all(at, sizes, count, s); }
API cuMemDiscardAndPrefetchBatchAsync_ptsz(CUdeviceptr *at, size_t *sizes, size_t count, CUmemLocation *to, size_t *to_at, size_t to_count, unsigned long long flags, CUstream s) { return (void)to, (void)to_at, (void)to_count, (void)flags, prefetch_all(at, sizes, count, s); }

/* As on a card without the engine for it */
API cuMemBatchDecompressAsync(CUmemDecompressParams *list, size_t count, unsigned int flags, size_t *failed, CUstream s) { return (void)list, (void)count, (void)flags, (void)failed, (void)s, CUDA_ERROR_NOT_SUPPORTED; }
API cuMemBatchDecompressAsync_ptsz(CUmemDecompressParams *list, size_t count, unsigned int flags, size_t *failed, CUstream s) { return (void)list, (void)count, (void)flags, (void)failed, (void)s, CUDA_ERROR_NOT_SUPPORTED; }
