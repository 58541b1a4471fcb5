# Writes OUT, a header with the page of `kakeya serve`: chat_html, its bytes, and the hashes by which
# its Content-Security-Policy names its script and its style.  SCRIPTS, in FOLDER, are joined in
# their order.
include("${CMAKE_CURRENT_LIST_DIR}/bytes.cmake")

set(script "\n")
foreach(name IN LISTS SCRIPTS)
  file(READ "${FOLDER}/${name}" text)
  string(APPEND script "${text}")
endforeach()
file(READ "${FOLDER}/chat.css" style)
if("${script}${style}" MATCHES "</(script|style)")
  message(FATAL_ERROR "${FOLDER}: a script or the style ends its own element")
endif()
kk_source_hash(script_hash "${script}")
kk_source_hash(style_hash "${style}")

file(READ "${FOLDER}/chat.html" page)
foreach(part IN ITEMS STYLE SCRIPT)
  if(NOT page MATCHES "@${part}@")
    message(FATAL_ERROR "${FOLDER}/chat.html has no @${part}@")
  endif()
endforeach()
string(REPLACE "@STYLE@" "${style}" page "${page}")
string(REPLACE "@SCRIPT@" "${script}" page "${page}")

kk_array(array chat_html "${page}")
file(WRITE "${OUT}" "/* Written by the build from server/page. */\n"
     "#define CHAT_SCRIPT_HASH \"${script_hash}\"\n#define CHAT_STYLE_HASH \"${style_hash}\"\n${array}")
