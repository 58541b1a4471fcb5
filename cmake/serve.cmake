# libkakeya_serve.so: `kakeya serve`, loaded at run time from beside the program or the library.
#
# Like training it is whole in itself: the server and its own copy of the library, all hidden but its
# entry (server/serve_entry.h), linked with libmicrohttpd and SQLite, which the program that people
# run does not have.  Tests link the same server as a static library, kakeya_serve.

pkg_check_modules(MICROHTTPD IMPORTED_TARGET libmicrohttpd)
pkg_check_modules(SQLITE IMPORTED_TARGET sqlite3)
set(why "pkg-config knows no libmicrohttpd or no sqlite3 (Debian: libmicrohttpd-dev libsqlite3-dev)")
if(NOT (MICROHTTPD_FOUND AND SQLITE_FOUND) AND KK_SERVE STREQUAL "AUTO")
  message(STATUS "without the module of `kakeya serve`: ${why}")
  return()
elseif(NOT (MICROHTTPD_FOUND AND SQLITE_FOUND))
  message(FATAL_ERROR "the module of `kakeya serve` was asked for, and ${why}")
endif()

file(GLOB serve_sources CONFIGURE_DEPENDS "server/*.c" "server/grpc/*.c")
list(FILTER serve_sources EXCLUDE REGEX "/serve_load\\.c$") # the program's side
add_library(kakeya_serve STATIC ${serve_sources})
kk_flags(kakeya_serve)
set_target_properties(kakeya_serve PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(kakeya_serve PRIVATE src "${KK_GENERATED}"
                           PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")
add_dependencies(kakeya_serve kakeya_embedded)
target_link_libraries(kakeya_serve PUBLIC kakeya_static PkgConfig::JANSSON PkgConfig::MICROHTTPD
                      PkgConfig::SQLITE Threads::Threads m)

if(NOT KK_FUZZ)
  add_library(kakeya_serve_module MODULE $<TARGET_OBJECTS:kakeya_serve>)
  kk_link_flags(kakeya_serve_module)
  set_target_properties(kakeya_serve_module PROPERTIES PREFIX "lib" OUTPUT_NAME kakeya_serve
                        LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}" LINKER_LANGUAGE C)
  target_link_libraries(kakeya_serve_module PRIVATE kakeya_serve)
  if(NOT APPLE) # its own copy of the library, whatever the program that loads it has
    target_link_options(kakeya_serve_module PRIVATE "LINKER:-Bsymbolic" "LINKER:--exclude-libs,ALL")
  endif()
  install(TARGETS kakeya_serve_module LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/kakeya")
endif()
