# libkakeya_train.so: `kakeya train`, loaded at run time from beside the program or the library.
#
# OpenBLAS starts its threads when it is loaded, so the program that people run does not have it.
# The module is whole in itself: the trainer, and its own copy of the library and of the evaluation
# helpers, all hidden but its entry (train/entry.h).  Tests link the same trainer as a static
# library, kakeya_train.

pkg_check_modules(OPENBLAS IMPORTED_TARGET openblas)
set(why "pkg-config knows no openblas (Debian: libopenblas-dev)")
if(NOT OPENBLAS_FOUND AND KK_TRAIN STREQUAL "AUTO")
  message(STATUS "without the module of `kakeya train`: ${why}")
  return()
elseif(NOT OPENBLAS_FOUND)
  message(FATAL_ERROR "the module of `kakeya train` was asked for, and ${why}")
endif()

file(GLOB train_sources CONFIGURE_DEPENDS "train/*.c")
list(FILTER train_sources EXCLUDE REGEX "/train_load\\.c$") # the program's side
add_library(kakeya_train STATIC ${train_sources})
kk_flags(kakeya_train)
set_target_properties(kakeya_train PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(kakeya_train PRIVATE src)
target_link_libraries(kakeya_train PUBLIC kakeya_eval PkgConfig::OPENBLAS)

if(NOT KK_FUZZ)
  add_library(kakeya_train_module MODULE $<TARGET_OBJECTS:kakeya_train>)
  kk_link_flags(kakeya_train_module)
  set_target_properties(kakeya_train_module PROPERTIES PREFIX "lib" OUTPUT_NAME kakeya_train
                        LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}" LINKER_LANGUAGE C)
  target_link_libraries(kakeya_train_module PRIVATE kakeya_eval PkgConfig::OPENBLAS)
  if(NOT APPLE) # its own copy of the library, whatever the program that loads it has
    target_link_options(kakeya_train_module PRIVATE "LINKER:-Bsymbolic" "LINKER:--exclude-libs,ALL")
  endif()
  install(TARGETS kakeya_train_module LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/kakeya")
endif()
