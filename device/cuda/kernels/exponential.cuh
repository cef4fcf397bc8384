/* device/cuda/kernels/exponential.cuh - the exponential of sigmoids, and of x * sigmoid(x): Elfwing, Uchibe & Doya,
 * arXiv:1702.03118. */
#ifndef DEVICE_CUDA_KERNELS_EXPONENTIAL_CUH
#define DEVICE_CUDA_KERNELS_EXPONENTIAL_CUH

#include "device/cuda/kernels/kernel.cuh"

/* exp(-x), kept finite. */
static __device__ inline float exponential_of_minus(float x)
{
    return exp2f(fminf(120, x * -1.44269504f));
}

#endif
