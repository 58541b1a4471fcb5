# libkakeya_grpc.so: gRPC of `kakeya serve`, which loads it when it is given --grpc-port.
#
# gRPC's library is C++, so the module is the one part of the server that is not C; what it shares
# with the rest is server/grpc/grpc_entry.h.  It carries nothing of the library: the server hands it a
# table of functions.  The code that protoc makes of the public proto/kakeya/v1/runtime.proto is not
# checked in.  Tests link the same code as a static library, kakeya_grpc.

pkg_check_modules(GRPC IMPORTED_TARGET grpc++ protobuf)
find_program(KK_PROTOC protoc)
find_program(KK_GRPC_PLUGIN grpc_cpp_plugin)
find_library(KK_GRPC_REFLECTION grpc++_reflection)
# The C++ compiler that belongs to the C compiler, so that one set of sanitizers is linked.
if(NOT CMAKE_CXX_COMPILER AND CMAKE_C_COMPILER MATCHES "(gcc|clang)(-[0-9.]+)?$")
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
set(why)
if(NOT GRPC_FOUND OR NOT KK_GRPC_REFLECTION)
  set(why "there is no libgrpc++ (Debian: libgrpc++-dev)")
elseif(NOT KK_PROTOC OR NOT KK_GRPC_PLUGIN)
  set(why "there is no protoc for it (Debian: protobuf-compiler-grpc)")
elseif(NOT CMAKE_CXX_COMPILER)
  set(why "there is no C++ compiler")
endif()
if(why AND KK_GRPC STREQUAL "AUTO")
  message(STATUS "without gRPC in `kakeya serve`: ${why}")
  return()
elseif(why)
  message(FATAL_ERROR "gRPC was asked for, and ${why}")
endif()
enable_language(CXX)
set(CMAKE_CXX_FLAGS_RELEASE "${CMAKE_C_FLAGS_RELEASE}")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1") # what is generated compiles slowly
set(CMAKE_CXX_FLAGS_DEBUG "${CMAKE_C_FLAGS_DEBUG}")

set(made "${CMAKE_BINARY_DIR}/generated/proto")
set(proto "${CMAKE_CURRENT_SOURCE_DIR}/proto")
set(stem "${made}/kakeya/v1/runtime")
file(MAKE_DIRECTORY "${made}")
add_custom_command(
  OUTPUT "${stem}.pb.cc" "${stem}.pb.h" "${stem}.grpc.pb.cc" "${stem}.grpc.pb.h"
  COMMAND "${KK_PROTOC}" "-I${proto}" "--cpp_out=${made}" "--grpc_out=${made}"
          "--plugin=protoc-gen-grpc=${KK_GRPC_PLUGIN}" "${proto}/kakeya/v1/runtime.proto"
  DEPENDS "${proto}/kakeya/v1/runtime.proto" COMMENT "Generating the messages of gRPC" VERBATIM)

# What was generated is compiled with the instruments and without the warnings.
add_library(kakeya_proto STATIC "${stem}.pb.cc" "${stem}.grpc.pb.cc")
target_compile_options(kakeya_proto PRIVATE ${KK_INSTRUMENTS} -w)
target_include_directories(kakeya_proto SYSTEM PUBLIC "${made}")
target_link_libraries(kakeya_proto PUBLIC PkgConfig::GRPC)

add_library(kakeya_grpc STATIC server/grpc/grpc_calls.cc server/grpc/grpc_server.cc)
kk_flags(kakeya_grpc)
target_include_directories(kakeya_grpc PUBLIC include "${CMAKE_CURRENT_SOURCE_DIR}")
target_link_libraries(kakeya_grpc PUBLIC kakeya_proto "${KK_GRPC_REFLECTION}" PkgConfig::JANSSON
                      Threads::Threads)
if(KK_SANITIZE MATCHES "undefined")
  # Two checks of calls need the half of UBSan's runtime that a program in C has not.
  set(checks -fno-sanitize=vptr)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    list(APPEND checks -fno-sanitize=function)
  endif()
  target_compile_options(kakeya_proto PRIVATE ${checks})
  target_compile_options(kakeya_grpc PRIVATE ${checks})
endif()
set_target_properties(kakeya_proto kakeya_grpc PROPERTIES POSITION_INDEPENDENT_CODE ON
                      CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
                      CXX_VISIBILITY_PRESET hidden)

if(NOT KK_FUZZ)
  add_library(kakeya_grpc_module MODULE $<TARGET_OBJECTS:kakeya_grpc>)
  kk_link_flags(kakeya_grpc_module)
  set_target_properties(kakeya_grpc_module PROPERTIES PREFIX "lib" OUTPUT_NAME kakeya_grpc
                        LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}" LINKER_LANGUAGE CXX)
  target_link_libraries(kakeya_grpc_module PRIVATE kakeya_grpc)
  if(NOT APPLE)
    set(map "${CMAKE_CURRENT_SOURCE_DIR}/cmake/grpc.map")
    target_link_options(kakeya_grpc_module PRIVATE "LINKER:--version-script=${map}")
  endif()
  install(TARGETS kakeya_grpc_module LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/kakeya")
  install(FILES proto/kakeya/v1/runtime.proto DESTINATION
          "${CMAKE_INSTALL_DATADIR}/kakeya/proto/kakeya/v1")
endif()
