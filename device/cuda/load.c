/* device/cuda/load.c - what a process takes of a device by merely using it: a context and the kernels.
 *
 * The driver loads a kernel when it is first launched, in the middle of a step and beyond any budget. So all are loaded
 * here. Which there are, the compiler's own start-up code knows, which registers each with the runtime: the linker sends
 * these calls by way of this file (--wrap). */
#include "device/cuda/cuda.h"

#ifdef CUDASIM

cudaError_t cuda_load_kernels(void)
{
    return cudaSuccess; /* they are functions of this program */
}

#else

#include <assert.h>

enum { KERNELS = 1024 };

/* Written before main, by the constructors that the compiler made. */
static const void *kernels[KERNELS];
static unsigned n_kernels;

void __real___cudaRegisterFunction(void **binary, const char *kernel, char *name, const char *device_name, int limit,
                                   void *thread, void *block, void *block_dim, void *grid_dim, int *size);
void __wrap___cudaRegisterFunction(void **binary, const char *kernel, char *name, const char *device_name, int limit,
                                   void *thread, void *block, void *block_dim, void *grid_dim, int *size);

void __wrap___cudaRegisterFunction(void **binary, const char *kernel, char *name, const char *device_name, int limit,
                                   void *thread, void *block, void *block_dim, void *grid_dim, int *size)
{
    __real___cudaRegisterFunction(binary, kernel, name, device_name, limit, thread, block, block_dim, grid_dim, size);
    assert(n_kernels < KERNELS);
    kernels[n_kernels++] = kernel;
}

/* To tell what a kernel needs the driver must have loaded it. */
cudaError_t cuda_load_kernels(void)
{
    cudaError_t rc = cudaSuccess;

    for (unsigned i = 0; i < n_kernels && rc == cudaSuccess; i++) {
        struct cudaFuncAttributes attributes;
        rc = cudaFuncGetAttributes(&attributes, kernels[i]);
    }
    return rc;
}

#endif
