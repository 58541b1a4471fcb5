# libkakeya_cuda.so: the CUDA device, loaded at run time from beside the program or the library.
#
# Host code is C like everything else; kernels are CUDA C++.  It carries its own copy of the few
# core functions it calls, so that it needs nothing of the program that loads it, and the CUDA
# runtime linked in, so that it needs the driver alone.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 89 90)
endif()
enable_language(CUDA)

file(GLOB cuda_sources CONFIGURE_DEPENDS "src/backend/cuda/*.c" "src/backend/cuda/*.cu")
add_library(kakeya_cuda MODULE ${cuda_sources} src/core/alloc.c src/core/clock.c
            src/core/dtype.c src/core/error.c src/core/threads.c)
target_include_directories(kakeya_cuda PRIVATE include src)
target_include_directories(kakeya_cuda SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
target_compile_options(kakeya_cuda PRIVATE
  "$<$<COMPILE_LANGUAGE:C>:${KK_WARNINGS};-ffp-contract=off>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-O3;-fmad=false>")
set_target_properties(kakeya_cuda PROPERTIES
  PREFIX "lib" C_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden CUDA_STANDARD 17
  CUDA_RUNTIME_LIBRARY Static LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
target_link_libraries(kakeya_cuda PRIVATE Threads::Threads m)
target_link_options(kakeya_cuda PRIVATE "LINKER:-Bsymbolic") # its own core, not the program's
install(TARGETS kakeya_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
