# libkakeya_cuda.so: the CUDA device, loaded at run time from beside the program or the library.
#
# Host code is C like everything else; kernels are CUDA C++.  It carries its own copy of the few
# core functions it calls, so that it needs nothing of the program that loads it, and the CUDA
# runtime linked in, so that it needs the driver alone.  It holds code for each chip of
# CMAKE_CUDA_ARCHITECTURES: sm_80, sm_86, sm_89, sm_90a, sm_100 and sm_120 compile.

# `scripts/setup cuda` puts a compiler into .cache/cuda where the system has none.
if(CMAKE_CUDA_COMPILER)
  set(KK_NVCC "${CMAKE_CUDA_COMPILER}")
elseif(DEFINED ENV{CUDACXX})
  set(KK_NVCC "$ENV{CUDACXX}")
else()
  find_program(KK_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin
               PATHS /usr/local/cuda /opt/cuda "${CMAKE_CURRENT_SOURCE_DIR}/.cache/cuda"
               DOC "nvcc of CUDA 12.1 or later")
endif()
set(why "no nvcc was found (make cuda fetches one)")
if(KK_NVCC)
  execute_process(COMMAND "${KK_NVCC}" --version OUTPUT_VARIABLE said ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" said "${said}")
  set(why "${KK_NVCC} is of CUDA ${CMAKE_MATCH_1}, and 12.1 is needed") # for parameters of 24 KB
  if(CMAKE_MATCH_1 VERSION_GREATER_EQUAL 12.1)
    set(why "${KK_NVCC} does not compile; it needs a C++ compiler beside it")
    include(CheckLanguage)
    set(ENV{CUDACXX} "${KK_NVCC}")
    if(NOT CMAKE_CUDA_COMPILER)
      unset(CMAKE_CUDA_COMPILER CACHE) # it may have failed before, and now work
    endif()
    check_language(CUDA)
  endif()
endif()
if(NOT CMAKE_CUDA_COMPILER AND KK_CUDA STREQUAL "AUTO")
  message(STATUS "without the CUDA device: ${why}")
  return()
elseif(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "the CUDA device was asked for, and ${why}")
endif()

# Without a list: this machine's chip, or sm_90a where there is none.  OFF leaves it to
# CMAKE_CUDA_FLAGS.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES OR CMAKE_CUDA_ARCHITECTURES STREQUAL "")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE chip ERROR_QUIET RESULT_VARIABLE none)
  string(REGEX MATCH "^([0-9]+)\\.([0-9])" chip "${chip}")
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  if("${none}" STREQUAL "0" AND chip AND NOT chip STREQUAL "9.0")
    set(CMAKE_CUDA_ARCHITECTURES "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
  endif()
endif()
enable_language(CUDA)
message(STATUS "with the CUDA device: CUDA ${CMAKE_CUDA_COMPILER_VERSION}, "
               "sm ${CMAKE_CUDA_ARCHITECTURES}")

file(GLOB cuda_sources CONFIGURE_DEPENDS "src/backend/cuda/*.c" "src/backend/cuda/*.cu")
file(GLOB kv_formats CONFIGURE_DEPENDS "src/core/kv*.c")
add_library(kakeya_cuda MODULE ${cuda_sources} ${kv_formats} src/backend/layer.c
            src/backend/placement.c src/backend/sampling_options.c src/backend/stores.c src/core/alloc.c src/core/clock.c src/core/dtype.c
            src/core/error.c src/core/threads.c)
target_include_directories(kakeya_cuda PRIVATE include src)
target_include_directories(kakeya_cuda SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
target_compile_options(kakeya_cuda PRIVATE
  "$<$<COMPILE_LANGUAGE:C>:${KK_WARNINGS};-ffp-contract=off>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-O3;-fmad=false>")
set_target_properties(kakeya_cuda PROPERTIES
  PREFIX "lib" C_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden CUDA_STANDARD 17
  CUDA_RUNTIME_LIBRARY Static LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
target_link_libraries(kakeya_cuda PRIVATE Threads::Threads m)
# Its own core, not the program's; and all of it: what is missing shows here and not when it loads.
target_link_options(kakeya_cuda PRIVATE "LINKER:-Bsymbolic" "LINKER:-z,defs")
install(TARGETS kakeya_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/kakeya")
