# The CUDA compiler, if it is wanted and found: sets FATHOM_HAS_CUDA. Sanitizers go without it.
set(FATHOM_HAS_CUDA OFF)
if(FATHOM_CUDA STREQUAL "AUTO" AND FATHOM_SANITIZE)
  message(STATUS "CUDA backend: left out of a build with sanitizers")
elseif(NOT FATHOM_CUDA STREQUAL "OFF")
  # CUDACXX, or what PATH has, or where the toolkit is usually installed.
  set(FATHOM_NVCC $ENV{CUDACXX})
  if(NOT FATHOM_NVCC)
    find_program(FATHOM_NVCC nvcc PATHS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  endif()
  set(FATHOM_NVCC_VERSION "")
  if(FATHOM_NVCC)
    execute_process(COMMAND ${FATHOM_NVCC} --version OUTPUT_VARIABLE about ERROR_QUIET)
    if(about MATCHES "release ([0-9.]+)")
      set(FATHOM_NVCC_VERSION ${CMAKE_MATCH_1})
    endif()
  endif()
  if(FATHOM_NVCC_VERSION VERSION_GREATER_EQUAL 13.0)
    if(NOT CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER ${FATHOM_NVCC})
    endif()
    # Each source says its own targets: fathom_cuda_sources().
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    # A bundle's programs share the kernels and CUDA's runtime (tools/make_bundle.sh).
    option(FATHOM_SHARED_KERNELS "Kernels as shared libraries" OFF)
    if(FATHOM_SHARED_KERNELS)
      set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
      set(FATHOM_CUDART CUDA::cudart)
    else()
      set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
      set(FATHOM_CUDART CUDA::cudart_static)
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit 13.0 REQUIRED)
    # Small, for the bundle.
    set(CMAKE_CUDA_FLAGS_RELEASE "-O3 --compress-mode=size")
    # CMake 3.25 does not know that this nvcc has C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA_STANDARD 20)
    # fmt 9 half-disables constexpr under nvcc, which then does not compile.
    set(CMAKE_CUDA_FLAGS "-DFMT_USE_CONSTEXPR=1 -DFMT_CONSTEVAL= --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers")
    if(CCACHE)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
    endif()
    set(FATHOM_HAS_CUDA ON)
    message(STATUS "CUDA backend: ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}")
  elseif(FATHOM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "no nvcc of CUDA 13.0 or later (${FATHOM_NVCC} ${FATHOM_NVCC_VERSION}): "
                        "install the CUDA toolkit, or name its compiler with CUDACXX; "
                        "-DFATHOM_CUDA=OFF builds without it")
  else()
    message(STATUS "CUDA backend: left out, there is no nvcc of CUDA 13.0 or later "
                   "(${FATHOM_NVCC} ${FATHOM_NVCC_VERSION})")
  endif()
endif()

# What kernels are compiled for: portable ones for all GPUs from sm_80 on (PTX for those to come),
# Hopper's for sm_90a alone.
set(FATHOM_CUDA_PORTABLE
    "-gencode=arch=compute_80,code=[sm_80,compute_80];-gencode=arch=compute_90,code=sm_90"
    CACHE STRING "Targets of portable kernels")
set(FATHOM_CUDA_HOPPER -gencode=arch=compute_90a,code=sm_90a)

# fathom_cuda_sources(PORTABLE a.cu ... HOPPER b.cu ...)
function(fathom_cuda_sources)
  cmake_parse_arguments(ARG "" "" "PORTABLE;HOPPER" ${ARGN})
  set_source_files_properties(${ARG_PORTABLE} PROPERTIES COMPILE_OPTIONS "${FATHOM_CUDA_PORTABLE}")
  set_source_files_properties(${ARG_HOPPER} PROPERTIES COMPILE_OPTIONS "${FATHOM_CUDA_HOPPER}")
endfunction()
