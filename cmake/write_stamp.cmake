# Writes OUT, a header with the commit of SOURCE, or "unknown" when SOURCE is not the root of a
# git checkout (a tarball, or a copy inside someone else's repository).

set(commit unknown)
if(EXISTS "${SOURCE}/.git")
  execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY "${SOURCE}"
                  OUTPUT_VARIABLE head RESULT_VARIABLE failed ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed EQUAL 0)
    set(commit ${head})
    execute_process(COMMAND git diff --quiet HEAD -- WORKING_DIRECTORY "${SOURCE}"
                    RESULT_VARIABLE changed ERROR_QUIET OUTPUT_QUIET)
    if(NOT changed EQUAL 0)
      string(APPEND commit "+")
    endif()
  endif()
endif()

set(text "/* Written by the build. */\n#define KK_BUILD_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS "${OUT}")
  file(READ "${OUT}" old)
endif()
if(NOT old STREQUAL text)
  file(WRITE "${OUT}" "${text}")
endif()
