# How every file is compiled.
#
# -ffp-contract=off holds everywhere: a row's bits must not depend on which multiply-adds a
# compiler chose to fuse in one kernel and not in another.  Kernels that want a fused
# multiply-add ask for it by its intrinsic.  -ffast-math is never used, for the same reason.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)

set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g") # asserts stay: the sanitizer builds use this
set(CMAKE_C_FLAGS_DEBUG "-Og -g")

set(KK_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
if(KK_WERROR)
  list(APPEND KK_WARNINGS -Werror)
endif()

# Instruments: compiled and linked into everything or into nothing.
set(KK_INSTRUMENTS)
if(KK_SANITIZE)
  list(APPEND KK_INSTRUMENTS -fsanitize=${KK_SANITIZE} -fno-omit-frame-pointer
       -fno-sanitize-recover=all)
endif()
if(KK_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "KK_FUZZ needs clang: configure with -DCMAKE_C_COMPILER=clang")
  endif()
  list(APPEND KK_INSTRUMENTS -fsanitize=fuzzer-no-link)
endif()
if(KK_COVERAGE)
  list(APPEND KK_INSTRUMENTS --coverage)
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    list(APPEND KK_INSTRUMENTS -fprofile-update=atomic)
  endif()
endif()

function(kk_link_flags target)
  target_link_options(${target} PRIVATE ${KK_INSTRUMENTS})
endfunction()

function(kk_flags target)
  target_compile_options(${target} PRIVATE ${KK_WARNINGS} -ffp-contract=off ${KK_INSTRUMENTS})
  set_target_properties(${target} PROPERTIES C_VISIBILITY_PRESET hidden)
  kk_link_flags(${target})
endfunction()

# Kernels of an instruction set are inlined whole and unrolled, and every access of theirs is
# checked: with full debug information and all of UBSan clang takes six minutes of processor time
# for one of these files, without under two.  AddressSanitizer checks the same accesses, which makes
# up for pointers that UBSan does not look at here; bounds, shifts, overflows and conversions it
# does.  Its checks stay in place: as calls they compile in half the time and run five times slower.
set(KK_KERNEL_INSTRUMENTS)
if(KK_SANITIZE AND CMAKE_C_COMPILER_ID MATCHES "Clang")
  list(APPEND KK_KERNEL_INSTRUMENTS -O1 -gline-tables-only)
  if(KK_SANITIZE MATCHES "undefined")
    list(APPEND KK_KERNEL_INSTRUMENTS -fno-sanitize=null,alignment,object-size,pointer-overflow)
  endif()
endif()

# Backend files in a release get -O3: compilers turn the sampler's loops over the vocabulary into
# vector code there.  A file whose name ends in an instruction set is compiled
# for that set, where this processor family has it, and left out elsewhere; which of them runs
# is decided at run time.
set(KK_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(KK_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c
    -mprefer-vector-width=512)
set(KK_FLAGS_neon -march=armv8.2-a+dotprod+fp16)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(KK_ISAS avx2 avx512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(KK_ISAS neon)
else()
  set(KK_ISAS)
endif()

function(kk_select_isa_files list_name)
  set(kept)
  foreach(file IN LISTS ${list_name})
    set(options)
    if(file MATCHES "/src/backend/")
      list(APPEND options "$<$<CONFIG:Release>:-O3>")
      # The kernels are written to be inlined whole; without it gcc refuses them.
      list(APPEND options "$<$<CONFIG:Debug>:-O2>")
    endif()
    if(file MATCHES "_(avx2|avx512|neon)\\.c$")
      set(isa ${CMAKE_MATCH_1})
      if(NOT isa IN_LIST KK_ISAS)
        continue()
      endif()
      list(APPEND options ${KK_FLAGS_${isa}} ${KK_KERNEL_INSTRUMENTS})
    endif()
    set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${options}")
    list(APPEND kept ${file})
  endforeach()
  set(${list_name} ${kept} PARENT_SCOPE)
endfunction()
