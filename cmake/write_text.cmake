# Writes OUT, a header with the bytes of the file TEXT as the array NAME.
include("${CMAKE_CURRENT_LIST_DIR}/bytes.cmake")
file(READ "${TEXT}" text)
kk_array(array ${NAME} "${text}")
file(WRITE "${OUT}" "/* Written by the build. */\n${array}")
