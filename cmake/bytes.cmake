# Functions of the scripts that write files at build time.

# kk_array(OUT NAME TEXT): OUT becomes C, the bytes of TEXT as the array NAME, with a NUL at its end.
function(kk_array out name text)
  string(HEX "${text}" hex)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  set(${out} "static const unsigned char ${name}[] = {${bytes}0};\n" PARENT_SCOPE)
endfunction()

# kk_source_hash(OUT TEXT): OUT becomes what a Content-Security-Policy calls TEXT by.
function(kk_source_hash out text)
  set(digits "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  string(SHA256 hex "${text}")
  # 256 bits and 8 of padding are 44 digits of 6 bits, made from 3 of 4 bits each time; the last digit
  # is padding alone and written so.
  set(padded "${hex}00")
  set(code "")
  foreach(at RANGE 0 63 3)
    string(SUBSTRING "${padded}" ${at} 3 three)
    math(EXPR high "0x${three} >> 6")
    math(EXPR low "0x${three} & 63")
    string(SUBSTRING "${digits}" ${high} 1 first)
    string(SUBSTRING "${digits}" ${low} 1 second)
    string(APPEND code "${first}${second}")
  endforeach()
  string(SUBSTRING "${code}" 0 43 code)
  set(${out} "sha256-${code}=" PARENT_SCOPE)
endfunction()
