# kakeya.deb, by CPack: `cpack -G DEB` in a build folder, or `make deb`.
#
# It holds what `make install` puts under /usr, and what is there on a machine that is served from
# alone: the unit of systemd with its user and its config file.  These are a component of their own,
# so that `make install` does not touch /etc.  Dependencies are those of the program and of every
# module that was built, as dpkg-shlibdeps finds them.
find_program(KK_SHLIBDEPS dpkg-shlibdeps)

set(bindir /usr/bin)
configure_file(deploy/kakeya.service "${CMAKE_BINARY_DIR}/generated/kakeya.service" @ONLY)
set(deploy COMPONENT deploy EXCLUDE_FROM_ALL)
install(FILES "${CMAKE_BINARY_DIR}/generated/kakeya.service"
        DESTINATION /usr/lib/systemd/system ${deploy})
install(FILES deploy/sysusers.conf DESTINATION /usr/lib/sysusers.d RENAME kakeya.conf ${deploy})
install(FILES deploy/serve.conf DESTINATION /etc/kakeya ${deploy})
install(FILES deploy/grafana.json DESTINATION /usr/share/kakeya ${deploy})
install(FILES LICENSE DESTINATION /usr/share/doc/kakeya RENAME copyright ${deploy})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kakeya)
set(CPACK_PACKAGE_VENDOR "Kakeya")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "Runs Gemma-4-class models on a CPU or a GPU, with drafted decoding that changes no token, K/V
caches of bounded size, and sessions that survive a restart.  With a command line, a server for
OpenAI's clients, a library in C, and a small model to try all of it with.")
set(CPACK_PACKAGE_CONTACT "The Kakeya developers <kakeya@localhost>")
set(CPACK_PACKAGE_FILE_NAME kakeya)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS systemd)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    "${CMAKE_CURRENT_SOURCE_DIR}/deploy/debian/postinst"
    "${CMAKE_CURRENT_SOURCE_DIR}/deploy/debian/prerm"
    "${CMAKE_CURRENT_SOURCE_DIR}/deploy/debian/postrm"
    "${CMAKE_CURRENT_SOURCE_DIR}/deploy/debian/conffiles")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ${KK_SHLIBDEPS})
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${CMAKE_BINARY_DIR}")
set(CPACK_STRIP_FILES ON)
set(CPACK_SET_DESTDIR ON) # some files are outside of the prefix
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};kakeya;ALL;/"
    "${CMAKE_BINARY_DIR};kakeya;deploy;/")
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
    GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
include(CPack)
