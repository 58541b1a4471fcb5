# libkakeya_mlx.so (.dylib on macOS): the MLX device, loaded at run time from beside the program or
# the library.
#
# MLX's interface is C++20, so the module is; what it shares with the program is backend.h, in C.  It
# carries its own copy of what it calls of the library.  MLX itself is found as a CMake package: of
# the system, as in `brew install mlx`, or of `scripts/setup mlx`, which unpacks PyPI's mlx-cpu into
# .cache/mlx.  That one's library is found at the place where it was linked, so an installed module
# needs MLX where the loader looks, or this folder to stay.

find_package(MLX CONFIG QUIET PATHS "${CMAKE_CURRENT_SOURCE_DIR}/.cache/mlx/mlx")
if(NOT CMAKE_CXX_COMPILER)
  if(CMAKE_C_COMPILER MATCHES "(gcc|clang)(-[0-9.]+)?$")
    string(REGEX REPLACE "gcc(-?[0-9.]*)$" "g++\\1" beside "${CMAKE_C_COMPILER}")
    string(REGEX REPLACE "clang(-?[0-9.]*)$" "clang++\\1" beside "${beside}")
    if(EXISTS "${beside}")
      set(CMAKE_CXX_COMPILER "${beside}")
    endif()
  endif()
  include(CheckLanguage)
  if(NOT CMAKE_CXX_COMPILER)
    check_language(CXX)
  endif()
endif()
set(why)
if(NOT MLX_FOUND)
  set(why "MLX was not found (scripts/setup mlx fetches it)")
elseif(NOT CMAKE_CXX_COMPILER)
  set(why "there is no C++ compiler")
endif()
if(why AND KK_MLX STREQUAL "AUTO")
  message(STATUS "without the MLX device: ${why}")
  return()
elseif(why)
  message(FATAL_ERROR "the MLX device was asked for, and ${why}")
endif()
enable_language(CXX)
set(CMAKE_CXX_FLAGS_RELEASE "${CMAKE_C_FLAGS_RELEASE}")
message(STATUS "with the MLX device: MLX ${MLX_VERSION}")

# The text of the Metal kernels, which MLX compiles when they are first used.
set(mlx_text "${CMAKE_CURRENT_SOURCE_DIR}/src/backend/mlx/mlx_pages.metal")
add_custom_command(
  OUTPUT "${KK_GENERATED}/mlx_pages_text.h"
  COMMAND ${CMAKE_COMMAND} "-DTEXT=${mlx_text}" -DNAME=mlx_pages_text
          "-DOUT=${KK_GENERATED}/mlx_pages_text.h"
          -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/write_text.cmake"
  DEPENDS "${mlx_text}" "${CMAKE_CURRENT_SOURCE_DIR}/cmake/write_text.cmake"
          "${CMAKE_CURRENT_SOURCE_DIR}/cmake/bytes.cmake"
  COMMENT "Embedding the Metal kernels" VERBATIM)

file(GLOB mlx_sources CONFIGURE_DEPENDS "src/backend/mlx/*.cc")
list(APPEND mlx_sources "${KK_GENERATED}/mlx_pages_text.h")
# What compiles and links files of the device.
function(kk_with_mlx target)
  target_compile_options(${target} PRIVATE # C leaves them out
    "$<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>")
  target_include_directories(${target} PRIVATE include src "${KK_GENERATED}")
  target_include_directories(${target} SYSTEM PRIVATE ${MLX_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE kakeya_static mlx Threads::Threads)
  set_target_properties(${target} PROPERTIES
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
endfunction()

# Compiled once, for the module and for the test that interprets its kernels.
add_library(kakeya_mlx_objects OBJECT ${mlx_sources})
kk_flags(kakeya_mlx_objects)
kk_with_mlx(kakeya_mlx_objects)
set_target_properties(kakeya_mlx_objects PROPERTIES POSITION_INDEPENDENT_CODE ON
  CXX_VISIBILITY_PRESET hidden)

add_library(kakeya_mlx MODULE $<TARGET_OBJECTS:kakeya_mlx_objects>)
kk_flags(kakeya_mlx)
kk_with_mlx(kakeya_mlx)
set_target_properties(kakeya_mlx PROPERTIES PREFIX "lib"
  LINKER_LANGUAGE CXX INSTALL_RPATH "${MLX_LIBRARY_DIRS}"
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
if(APPLE)
  set_target_properties(kakeya_mlx PROPERTIES SUFFIX ".dylib")
else() # its own copy of the library, whatever the program that loads it has
  target_link_options(kakeya_mlx PRIVATE "LINKER:-Bsymbolic"
    "LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cmake/mlx.map")
endif()
install(TARGETS kakeya_mlx LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/kakeya")
