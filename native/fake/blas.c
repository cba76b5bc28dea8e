/* A stand-in for cuBLAS and cuBLASLt (libcublas.so.13, libcublasLt.so.13): products of float and double matrices, worked
 * out on the host, where the stand-in driver keeps device memory. Each one launches a kernel first, so that it takes its
 * turn and its time on the card. What has no answer here is added by tests/torch_cuda/libraries.py and says "not supported".
 *
 * Threads: any, each with a handle of its own, as with the real one. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

#define API __attribute__((visibility("default"))) int
#define NOT_SUPPORTED 15
#define FAILED 13
#define REAL_FLOAT 0

struct handle {
    void *stream;
    int math_mode, pointer_mode;
};
typedef struct handle *cublasHandle_t;

int cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared, void *stream);
void **__cudaRegisterFatBinary(void *image);
void __cudaRegisterFunction(void **handle, const char *host, char *fun, const char *name, int limit, void *tid, void *bid, void *block, void *grid, int *warp);

static char product;

__attribute__((constructor)) static void register_kernel(void) {
    void **program = __cudaRegisterFatBinary(&product);
    __cudaRegisterFunction(program, &product, &product, "carpool_matrix_product", -1, NULL, NULL, NULL, NULL, NULL);
}

static int launch(void *stream) {
    dim3 one = {1, 1, 1};
    return cudaLaunchKernel(&product, one, one, NULL, 0, stream) ? FAILED : 0;
}

API cublasCreate_v2(cublasHandle_t *out) { return (*out = calloc(1, sizeof **out)) ? 0 : 3; }
API cublasDestroy_v2(cublasHandle_t h) { return free(h), 0; }
API cublasSetStream_v2(cublasHandle_t h, void *stream) { return h->stream = stream, 0; }
API cublasSetWorkspace_v2(cublasHandle_t h, void *at, size_t size) { return (void)h, (void)at, (void)size, 0; }
API cublasSetMathMode(cublasHandle_t h, int mode) { return h->math_mode = mode, 0; }
API cublasGetMathMode(cublasHandle_t h, int *out) { return *out = h->math_mode, 0; }
API cublasSetPointerMode_v2(cublasHandle_t h, int mode) { return h->pointer_mode = mode, 0; }
API cublasGetPointerMode_v2(cublasHandle_t h, int *out) { return *out = h->pointer_mode, 0; }

/* C = alpha A B + beta C, column by column; a transposed operand (1, 2) is read along its rows. */
#define GEMM(name, real)                                                                                                            \
    static void name(int ta, int tb, int m, int n, int k, real alpha, const real *a, int lda, const real *b, int ldb, real beta, real *c, int ldc) { \
        for (int j = 0; j < n; j++)                                                                                                 \
            for (int i = 0; i < m; i++) {                                                                                           \
                real sum = 0;                                                                                                       \
                for (int p = 0; p < k; p++)                                                                                         \
                    sum += (ta ? a[(size_t)i * lda + p] : a[(size_t)p * lda + i]) * (tb ? b[(size_t)p * ldb + j] : b[(size_t)j * ldb + p]); \
                real *out = &c[(size_t)j * ldc + i];                                                                                \
                *out = alpha * sum + (beta != 0 ? beta * *out : 0);                                                                 \
            }                                                                                                                       \
    }
GEMM(multiply_float, float)
GEMM(multiply_double, double)

#define MATRICES(real) int ta, int tb, int m, int n, int k, const real *alpha, const real *a, int lda
API cublasSgemm_v2(cublasHandle_t h, MATRICES(float), const float *b, int ldb, const float *beta, float *c, int ldc) {
    int error = launch(h->stream);
    if (!error)
        multiply_float(ta, tb, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);
    return error;
}
API cublasDgemm_v2(cublasHandle_t h, MATRICES(double), const double *b, int ldb, const double *beta, double *c, int ldc) {
    int error = launch(h->stream);
    if (!error)
        multiply_double(ta, tb, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);
    return error;
}
API cublasSgemmStridedBatched(cublasHandle_t h, MATRICES(float), long long stride_a, const float *b, int ldb, long long stride_b, const float *beta, float *c, int ldc, long long stride_c, int count) {
    int error = launch(h->stream);
    for (int i = 0; i < count && !error; i++)
        multiply_float(ta, tb, m, n, k, *alpha, a + i * stride_a, lda, b + i * stride_b, ldb, *beta, c + i * stride_c, ldc);
    return error;
}
API cublasGemmEx(cublasHandle_t h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int type_a, int lda, const void *b, int type_b, int ldb, const void *beta, void *c, int type_c, int ldc, int compute, int algorithm) {
    (void)compute, (void)algorithm;
    bool is_float = type_a == REAL_FLOAT && type_b == REAL_FLOAT && type_c == REAL_FLOAT;
    return is_float ? cublasSgemm_v2(h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) : NOT_SUPPORTED;
}

/* cuBLASLt: the same with descriptions, and a bias or a rectifier at the end. */

enum { TRANSPOSE_A = 3, TRANSPOSE_B = 4, EPILOGUE = 7, BIAS = 8, BATCH_COUNT = 5 };
enum { PLAIN = 1, WITH_RELU = 2, WITH_BIAS = 4 };
struct product {
    int ta, tb, epilogue;
    const float *bias;
};
struct layout {
    int type, batches;
    int64_t rows, columns, ld;
};
struct choice { /* an algorithm of the real one, and what is known of it */
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};

API cublasLtMatmulDescCreate(struct product **out, int compute, int scale) {
    (void)compute, (void)scale;
    if (!(*out = calloc(1, sizeof **out)))
        return 3;
    return (*out)->epilogue = PLAIN, 0;
}
API cublasLtMatmulDescDestroy(struct product *p) { return free(p), 0; }
API cublasLtMatmulDescSetAttribute(struct product *p, int which, const void *value, size_t size) {
    void *to = which == TRANSPOSE_A ? (void *)&p->ta : which == TRANSPOSE_B ? (void *)&p->tb : which == EPILOGUE ? (void *)&p->epilogue : which == BIAS ? (void *)&p->bias : NULL;
    return to ? memcpy(to, value, size), 0 : 0; /* the others choose between algorithms */
}
API cublasLtMatrixLayoutCreate(struct layout **out, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    if (!(*out = calloc(1, sizeof **out)))
        return 3;
    **out = (struct layout){.type = type, .batches = 1, .rows = (int64_t)rows, .columns = (int64_t)columns, .ld = ld};
    return 0;
}
API cublasLtMatrixLayoutDestroy(struct layout *l) { return free(l), 0; }
API cublasLtMatrixLayoutSetAttribute(struct layout *l, int which, const void *value, size_t size) { return which == BATCH_COUNT ? memcpy(&l->batches, value, size), 0 : 0; }
API cublasLtMatmulPreferenceCreate(void **out) { return (*out = calloc(1, 1)) ? 0 : 3; }
API cublasLtMatmulPreferenceDestroy(void *p) { return free(p), 0; }
API cublasLtMatmulPreferenceSetAttribute(void *p, int which, const void *value, size_t size) { return (void)p, (void)which, (void)value, (void)size, 0; }

static bool is_possible(const struct product *p, const struct layout *a, const struct layout *b, const struct layout *d) {
    bool is_float = a->type == REAL_FLOAT && b->type == REAL_FLOAT && d->type == REAL_FLOAT;
    return is_float && d->batches == 1 && (p->epilogue & ~(PLAIN | WITH_RELU | WITH_BIAS)) == 0;
}

API cublasLtMatmulAlgoGetHeuristic(void *h, struct product *p, struct layout *a, struct layout *b, struct layout *c, struct layout *d, void *preference, int wanted, struct choice *out, int *found) {
    (void)h, (void)c, (void)preference, (void)wanted;
    *found = is_possible(p, a, b, d);
    memset(out, 0, sizeof *out);
    return *found ? 0 : NOT_SUPPORTED;
}

API cublasLtMatmul(void *h, struct product *p, const float *alpha, const float *a, struct layout *of_a, const float *b, struct layout *of_b, const float *beta, const float *c, struct layout *of_c, float *d, struct layout *of_d, const void *algorithm, void *workspace, size_t bytes, void *stream) {
    (void)h, (void)algorithm, (void)workspace, (void)bytes;
    if (!is_possible(p, of_a, of_b, of_d) || (*beta != 0 && (c != d || of_c->ld != of_d->ld)))
        return NOT_SUPPORTED;
    int error = launch(stream);
    if (error)
        return error;
    int m = (int)of_d->rows, n = (int)of_d->columns, k = (int)(p->ta ? of_a->rows : of_a->columns);
    multiply_float(p->ta, p->tb, m, n, k, *alpha, a, (int)of_a->ld, b, (int)of_b->ld, *beta, d, (int)of_d->ld);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            float *out = &d[j * of_d->ld + i], value = *out + (p->epilogue & WITH_BIAS ? p->bias[i] : 0);
            *out = p->epilogue & WITH_RELU && value < 0 ? 0 : value;
        }
    return 0;
}
