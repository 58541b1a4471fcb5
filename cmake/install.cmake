# What `make install` puts where.  The shared library is kakeya::kakeya to CMake; the static one
# is kakeya::kakeya_static, offered where jansson is there to link it with.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kakeya")

install(TARGETS kakeya_shared EXPORT kakeyaTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS kakeya_static EXPORT kakeyaStaticTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET kakeya_cli)
  install(TARGETS kakeya_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES include/kakeya.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

install(EXPORT kakeyaTargets NAMESPACE kakeya:: DESTINATION ${package_dir})
install(EXPORT kakeyaStaticTargets NAMESPACE kakeya:: DESTINATION ${package_dir})
configure_package_config_file(cmake/kakeyaConfig.cmake.in
  "${CMAKE_BINARY_DIR}/generated/kakeyaConfig.cmake" INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${CMAKE_BINARY_DIR}/generated/kakeyaConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/generated/kakeyaConfig.cmake"
              "${CMAKE_BINARY_DIR}/generated/kakeyaConfigVersion.cmake"
        DESTINATION ${package_dir})

# The prefix is filled in at install time, so that one build serves any PREFIX.
set(KK_PC_IN "${CMAKE_CURRENT_SOURCE_DIR}/cmake/kakeya.pc.in")
install(CODE "
  set(CMAKE_INSTALL_LIBDIR \"${CMAKE_INSTALL_LIBDIR}\")
  set(CMAKE_INSTALL_INCLUDEDIR \"${CMAKE_INSTALL_INCLUDEDIR}\")
  set(PROJECT_VERSION \"${PROJECT_VERSION}\")
  set(PROJECT_DESCRIPTION \"${PROJECT_DESCRIPTION}\")
  configure_file(\"${KK_PC_IN}\" \"${CMAKE_BINARY_DIR}/generated/kakeya.pc\" @ONLY)")
install(FILES "${CMAKE_BINARY_DIR}/generated/kakeya.pc"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

# The manual page and the completions are printed by the program, from its option tables, whenever it
# was linked anew.
if(TARGET kakeya_cli)
  set(printed "${CMAKE_BINARY_DIR}/generated")
  add_custom_command(TARGET kakeya_cli POST_BUILD
    COMMAND kakeya_cli help --man >kakeya.1
    COMMAND kakeya_cli completion bash >kakeya.bash
    COMMAND kakeya_cli completion zsh >_kakeya
    COMMAND kakeya_cli completion fish >kakeya.fish
    WORKING_DIRECTORY "${printed}" COMMENT "Printing the manual page and the completions")
  set(share "${CMAKE_INSTALL_DATADIR}")
  install(FILES "${printed}/kakeya.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
  install(FILES "${printed}/kakeya.bash" DESTINATION "${share}/bash-completion/completions"
          RENAME kakeya)
  install(FILES "${printed}/_kakeya" DESTINATION "${share}/zsh/site-functions")
  install(FILES "${printed}/kakeya.fish" DESTINATION "${share}/fish/vendor_completions.d")
endif()

# The small family that every command uses when it is given no model.
if(EXISTS "${CMAKE_SOURCE_DIR}/models/tiny")
  install(DIRECTORY models/tiny DESTINATION "${CMAKE_INSTALL_DATADIR}/kakeya/models"
          PATTERN "*.png" EXCLUDE)
endif()
