# kakeya_build.h: the commit this build was made from, looked up at every build and written only
# when it changed.

set(KK_GENERATED "${CMAKE_BINARY_DIR}/generated")
add_custom_target(kakeya_stamp
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}
          -DOUT=${KK_GENERATED}/kakeya_build.h
          -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/write_stamp.cmake
  BYPRODUCTS ${KK_GENERATED}/kakeya_build.h
  COMMENT "Looking up the commit")
