# eps-cuda, the module that holds the CUDA backend, where NVIDIA's toolkit is: nvcc and cuBLASLt. The programs do without
# it, and so does the rest of the build.
set(EPS_CUDA AUTO CACHE STRING "build the CUDA device: ON, OFF, or AUTO, where the toolkit is found")
set_property(CACHE EPS_CUDA PROPERTY STRINGS AUTO ON OFF)
set(EPS_CUDA_BUILT OFF)

if(NOT EPS_CUDA)
  message(STATUS "CUDA device: not built, as EPS_CUDA is ${EPS_CUDA}")
  return()
endif()

# Machine code for what is common, and PTX that the driver compiles for what is newer.
set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90-real 100)
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  find_package(CUDAToolkit)
endif()
if(NOT TARGET CUDA::cublasLt)
  if(EPS_CUDA STREQUAL "ON")
    message(FATAL_ERROR "EPS_CUDA is ON, but NVIDIA's CUDA toolkit is not found: nvcc in PATH, and libcublasLt")
  endif()
  message(STATUS "CUDA device: not built, for lack of NVIDIA's CUDA toolkit (nvcc in PATH, and libcublasLt)")
  return()
endif()
