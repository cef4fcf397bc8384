# eps-cuda.so, the module with the CUDA backend, built if NVIDIA's toolkit (nvcc, cuBLASLt) is found. Neither the
# programs nor the rest of the build need it. Its host code is C; nvcc compiles the kernels, one object for all devices,
# and its report on each kernel is kept in cuda-kernels.txt.
#
# With the toolkit, the module is part of the whole build and of the target `programs` (tools/quickstart.sh). So it
# needs no option, and every test run compiles every kernel, with or without a GPU. That takes two cores a minute and a
# half, once; tools/test.sh, in a folder where nothing is built and without a GPU, one minute: for one generation.
set(EPS_CUDA AUTO CACHE STRING "build the CUDA device: ON, OFF, or AUTO, where the toolkit is found")
set_property(CACHE EPS_CUDA PROPERTY STRINGS AUTO ON OFF)
set(EPS_CUDA_CODE sm_80,sm_90,sm_100,compute_80 CACHE STRING "what nvcc compiles for, as its -gencode takes it")

if(EPS_CUDA)
  find_package(CUDAToolkit 12.8 QUIET) # the first that knows sm_100
endif()
if(NOT EPS_CUDA)
  message(STATUS "CUDA device: not built, as EPS_CUDA is OFF")
elseif(NOT CUDAToolkit_NVCC_EXECUTABLE OR NOT TARGET CUDA::cublasLt OR NOT TARGET CUDA::cudart_static)
  if(EPS_CUDA STREQUAL "ON")
    message(FATAL_ERROR "EPS_CUDA is ON, but NVIDIA's CUDA toolkit, 12.8 or later, is not found: nvcc in PATH, cuBLASLt, static cudart")
  endif()
  message(STATUS "CUDA device: not built, for lack of NVIDIA's CUDA toolkit, 12.8 or later (nvcc in PATH, cuBLASLt, static cudart)")
else()
  message(STATUS "CUDA device: built by ${CUDAToolkit_NVCC_EXECUTABLE} ${CUDAToolkit_VERSION}")

  # Machine code for each generation (sm_80's also runs on 8.6 and 8.9), and PTX that the driver compiles for newer ones.
  # All of it is made from the oldest target's PTX, which suffices for every kernel: generating PTX takes nvcc longer than
  # all machine code.
  # None is compressed, so that tests can read it. Only an fmaf that is written is one: kernels compiled for whole packs
  # and for single values have the same bits, as where arrays begin may depend on the budget.
  set(nvcc_options -std=c++17 -O3 -fmad=false -lineinfo -no-compress -Xptxas=-v
      -Xcompiler=-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics,-Wall
      -gencode=arch=compute_80,code=[${EPS_CUDA_CODE}])

  if(CMAKE_COMPILE_WARNING_AS_ERROR)
    list(APPEND nvcc_options -Werror=all-warnings)
  endif()
  file(GLOB cuda_kernels CONFIGURE_DEPENDS device/cuda/kernels/*.cu)
  set(cuda_objects)
  set(cuda_reports)
  foreach(source ${cuda_kernels})
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(
      OUTPUT ${object} ${object}.txt
      COMMAND ${CMAKE_SOURCE_DIR}/tools/nvcc.sh ${object}.txt ${CMAKE_C_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} ${nvcc_options}
              -I${CMAKE_SOURCE_DIR} -ccbin ${CMAKE_C_COMPILER} -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} ${CMAKE_SOURCE_DIR}/tools/nvcc.sh
      DEPFILE ${object}.d
      COMMENT "Building CUDA object cuda/${name}.o"
      VERBATIM)
    list(APPEND cuda_objects ${object})
    list(APPEND cuda_reports ${object}.txt)
  endforeach()
  add_custom_command(
    OUTPUT ${CMAKE_BINARY_DIR}/cuda-kernels.txt
    COMMAND ${CMAKE_SOURCE_DIR}/tools/cuda_kernels.sh ${CMAKE_BINARY_DIR}/cuda-kernels.txt ${cuda_reports}
    DEPENDS ${cuda_reports} ${CMAKE_SOURCE_DIR}/tools/cuda_kernels.sh
    VERBATIM)
  add_custom_target(cuda_kernels_report ALL DEPENDS ${CMAKE_BINARY_DIR}/cuda-kernels.txt)

  file(GLOB cuda_sources CONFIGURE_DEPENDS device/cuda/*.c device/cuda/dnn/*.c)
  set_source_files_properties(device/cuda/cuda.c PROPERTIES COMPILE_DEFINITIONS EPS_VERSION="${PROJECT_VERSION}")
  add_library(eps-cuda MODULE ${cuda_sources} ${cuda_objects})
  set_target_properties(eps-cuda PROPERTIES PREFIX "" C_VISIBILITY_PRESET hidden
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin
                        BUILD_RPATH ${CUDAToolkit_LIBRARY_DIR} INSTALL_RPATH ${CUDAToolkit_LIBRARY_DIR})
  target_include_directories(eps-cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(eps-cuda PRIVATE proto CUDA::cudart_static CUDA::cublasLt ${CMAKE_DL_LIBS})
  target_link_options(eps-cuda PRIVATE -Wl,--as-needed,-z,defs,--exclude-libs,ALL,--wrap=__cudaRegisterFunction)
endif()
