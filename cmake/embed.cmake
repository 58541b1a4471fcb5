# Files that become part of the program, written as C arrays at build time:
#   page_html.h     the page of `kakeya report html`, from eval/reports/page
#   chat_html.h     the page of `kakeya serve`, from server/page
#   manual_text.h   the prose of the manual page, docs/kakeya.1.in

set(page_folder "${CMAKE_CURRENT_SOURCE_DIR}/eval/reports/page")
# Scripts in the order in which they are joined: each uses those before it.
set(page_scripts text.js plot.js speed.js quality.js serving.js main.js)
set(page_files ${page_scripts} page.html page.css)
list(TRANSFORM page_files PREPEND "${page_folder}/")
add_custom_command(
  OUTPUT "${KK_GENERATED}/page_html.h"
  COMMAND ${CMAKE_COMMAND} "-DFOLDER=${page_folder}" "-DSCRIPTS=${page_scripts}"
          "-DOUT=${KK_GENERATED}/page_html.h"
          -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/write_page.cmake"
  DEPENDS ${page_files} "${CMAKE_CURRENT_SOURCE_DIR}/cmake/write_page.cmake"
          "${CMAKE_CURRENT_SOURCE_DIR}/cmake/bytes.cmake"
  COMMENT "Joining the page of reports" VERBATIM)

set(chat_folder "${CMAKE_CURRENT_SOURCE_DIR}/server/page")
set(chat_scripts element.js markdown.js answer.js api.js meters.js sessions.js settings.js chat.js)
set(chat_files ${chat_scripts} chat.html chat.css)
list(TRANSFORM chat_files PREPEND "${chat_folder}/")
add_custom_command(
  OUTPUT "${KK_GENERATED}/chat_html.h"
  COMMAND ${CMAKE_COMMAND} "-DFOLDER=${chat_folder}" "-DSCRIPTS=${chat_scripts}"
          "-DOUT=${KK_GENERATED}/chat_html.h"
          -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/write_chat.cmake"
  DEPENDS ${chat_files} "${CMAKE_CURRENT_SOURCE_DIR}/cmake/write_chat.cmake"
          "${CMAKE_CURRENT_SOURCE_DIR}/cmake/bytes.cmake"
  COMMENT "Joining the page of the server" VERBATIM)

set(manual "${CMAKE_CURRENT_SOURCE_DIR}/docs/kakeya.1.in")
add_custom_command(
  OUTPUT "${KK_GENERATED}/manual_text.h"
  COMMAND ${CMAKE_COMMAND} "-DTEXT=${manual}" -DNAME=manual_text
          "-DOUT=${KK_GENERATED}/manual_text.h"
          -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/write_text.cmake"
  DEPENDS "${manual}" "${CMAKE_CURRENT_SOURCE_DIR}/cmake/write_text.cmake"
          "${CMAKE_CURRENT_SOURCE_DIR}/cmake/bytes.cmake"
  COMMENT "Embedding the prose of the manual page" VERBATIM)

add_custom_target(kakeya_embedded DEPENDS "${KK_GENERATED}/page_html.h"
                  "${KK_GENERATED}/chat_html.h"
                  "${KK_GENERATED}/manual_text.h")
# What reads the sources without building them asks for the stamp alone, and needs these too.
add_dependencies(kakeya_stamp kakeya_embedded)
