/* Bodies for the kernels of PyTorch 2.13 that programs/train.py launches, so that it really trains on the stand-in GPU.
 * A body has the kernel's own name; params are the addresses of the kernel's arguments: a count, a functor, and an array
 * of pointers (the result, then the operands). */

#define KERNEL(name) void name(void **params, const unsigned grid[3], const unsigned block[3])
#define BEGIN                      \
    (void)grid, (void)block;       \
    int count = *(int *)params[0]; \
    float *const *at = params[2]

/* out = a + alpha * b; the functor is alpha. */
KERNEL(_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_) {
    BEGIN;
    float alpha = *(float *)params[1];
    for (int i = 0; i < count; i++)
        at[0][i] = at[1][i] + alpha * at[2][i];
}

/* out = factor * a; the functor is an empty one, then the factor. */
KERNEL(_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13AUnaryFunctorIfffNS0_15binary_internal10MulFunctorIfEEEESt5arrayIPcLm2EEEEviT0_T1_) {
    BEGIN;
    float factor = ((float *)params[1])[1];
    for (int i = 0; i < count; i++)
        at[0][i] = factor * at[1][i];
}
