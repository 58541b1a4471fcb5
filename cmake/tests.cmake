# Tests, one executable or script each, labelled by folder:
#   unit parity fault   tests/<folder>/NAME_test.c
#   fuzz                tests/fuzz/fuzz_NAME.c or .cc replayed over tests/fuzz/corpus/NAME
#   e2e                 tests/e2e/NAME.sh with KAKEYA, KK_TEST_DATA and, where they are built,
#                       KK_CUDA_MODULE, KK_TRAIN_MODULE, KK_SERVE_MODULE and KK_GRPC_MODULE in its
#                       environment, and KK_LIBRARY, libkakeya.so, where it has no instruments
#   tools               tests/tools/NAME_test.py, where there is a python3; and a few of the signals
#                       of tests/signals (`make signals` sends them all)
#   release             a draw of rows of the stored reports executed again, and the gate of reports
#                       with limits that are a step off
#   package             an installed copy used by a small program
#   lint                the checks of `make lint`, each shown a fault
# A test that includes support/draws.h takes a part of its draws, or all with KK_ALL_DRAWS in the
# environment: the label `draws`, which `make check` runs so.
# A test that includes pthread.h or core/threads.h, or says `ctest: threads` in a comment, is
# labelled `threads` too, and runs under TSan.
# Exit code 77 is a skipped test: of scripts by e2e/lib.sh, of programs by support/skips.h;
# what cannot be built here is a test that says so.

set(test_data "${CMAKE_CURRENT_SOURCE_DIR}/tests/data")

# Whether the first file of a test is one of the server's.
function(kk_serves result file)
  file(STRINGS ${file} found REGEX "#include \"server/")
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# Whether it is one of gRPC's.
function(kk_speaks_grpc result file)
  file(STRINGS ${file} found REGEX "#include \"server/grpc/")
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# A test whose parts are not here is told as skipped, not left out in silence.
function(kk_skipped name why)
  message(STATUS "not built: ${name} (${why})")
  add_test(NAME ${name} COMMAND sh -c "echo 'SKIP: ${why}'; exit 77")
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()

function(kk_test_executable target)
  add_executable(${target} ${ARGN})
  kk_flags(${target})
  # Tests keep their asserts in every build type.
  target_compile_options(${target} PRIVATE -UNDEBUG)
  target_compile_definitions(${target} PRIVATE "KK_TEST_DATA=\"${test_data}\""
                             "KK_MODELS=\"${CMAKE_CURRENT_SOURCE_DIR}/models\"")
  target_include_directories(${target} PRIVATE src tests "${CMAKE_CURRENT_SOURCE_DIR}"
                             "${KK_GENERATED}")
  if(TARGET kakeya_eval)
    target_link_libraries(${target} PRIVATE kakeya_eval)
  endif()
  target_link_libraries(${target} PRIVATE kakeya_static Threads::Threads m)
  if(TARGET PkgConfig::JANSSON)
    target_link_libraries(${target} PRIVATE PkgConfig::JANSSON)
  endif()
  list(GET ARGN 0 first)
  file(STRINGS ${first} bridges REGEX "#include \"bridge/")
  if(bridges)
    target_link_libraries(${target} PRIVATE kakeya_bridge)
  endif()
  kk_serves(serves ${ARGN})
  if(serves)
    target_link_libraries(${target} PRIVATE kakeya_serve)
  endif()
  kk_speaks_grpc(grpc ${ARGN})
  if(grpc)
    target_link_libraries(${target} PRIVATE kakeya_grpc)
    set_target_properties(${target} PROPERTIES CXX_STANDARD 17 LINKER_LANGUAGE CXX)
  endif()
  set_target_properties(${target} PROPERTIES
                        RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
endfunction()

function(kk_c_tests folder)
  file(GLOB files CONFIGURE_DEPENDS "tests/${folder}/*_test.c")
  foreach(file IN LISTS files)
    get_filename_component(name ${file} NAME_WE)
    string(REGEX REPLACE "_test$" "" short ${name})
    if(NOT CMOCKA_FOUND)
      kk_skipped(${folder}.${short} "no cmocka")
      continue()
    endif()
    file(STRINGS ${file} trains REGEX "#include \"train/")
    if(trains AND NOT TARGET kakeya_train)
      kk_skipped(${folder}.${short} "no OpenBLAS")
      continue()
    endif()
    kk_serves(serves ${file})
    if(serves AND NOT TARGET kakeya_serve)
      kk_skipped(${folder}.${short} "no libmicrohttpd or SQLite")
      continue()
    endif()
    set(more)
    kk_speaks_grpc(grpc ${file})
    if(grpc AND NOT TARGET kakeya_grpc)
      kk_skipped(${folder}.${short} "no libgrpc++")
      continue()
    elseif(grpc)
      set(more tests/support/grpc_client.cc)
    endif()
    file(STRINGS ${file} interprets REGEX "#include \"support/mlx_interpreter.h\"")
    if(interprets AND NOT TARGET kakeya_mlx)
      kk_skipped(${folder}.${short} "no MLX")
      continue()
    elseif(interprets) # the device's own files, with other kernels in them
      set(more tests/support/mlx_interpreter.cc $<TARGET_OBJECTS:kakeya_mlx_objects>)
    endif()
    kk_test_executable(${name} ${file} ${more})
    if(name MATCHES "^mlx_" AND TARGET kakeya_mlx) # else they say that they were skipped
      add_dependencies(${name} kakeya_mlx_beside_tests)
      target_compile_definitions(${name} PRIVATE KK_WITH_MLX)
    endif()
    if(trains)
      target_link_libraries(${name} PRIVATE kakeya_train)
    endif()
    if(interprets)
      kk_with_mlx(${name})
      set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
    endif()
    target_link_libraries(${name} PRIVATE PkgConfig::CMOCKA)
    add_test(NAME ${folder}.${short} COMMAND ${name})
    set(labels ${folder})
    file(STRINGS ${file} threaded REGEX
         "#include [<\"](pthread|core/threads)\\.h|ctest: threads")
    if(threaded)
      list(APPEND labels threads)
      add_dependencies(threads_tests ${name})
    endif()
    file(STRINGS ${file} drawn REGEX "#include \"support/draws.h\"")
    if(drawn)
      list(APPEND labels draws)
    endif()
    set_tests_properties(${folder}.${short} PROPERTIES LABELS "${labels}" TIMEOUT 600)
    file(STRINGS ${file} skips REGEX "#include \"support/skips.h\"")
    file(STRINGS ${file} in_silence REGEX "(^|[^_a-z])skip\\(\\)")
    if(in_silence)
      message(FATAL_ERROR "${file}: skip() without support/skips.h, so that ctest would not know")
    elseif(skips)
      set_tests_properties(${folder}.${short} PROPERTIES SKIP_RETURN_CODE 77)
    endif()
  endforeach()
endfunction()

# Cross builds have no cmocka: their one test is a plain program.
if(KK_KERNELS_ONLY)
  if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/tests/parity/kernels_test.c")
    kk_test_executable(kernels_test tests/parity/kernels_test.c)
    add_test(NAME parity.kernels COMMAND kernels_test)
    set_tests_properties(parity.kernels PROPERTIES LABELS parity TIMEOUT 900)
  endif()
  return()
endif()

file(GLOB fuzzers CONFIGURE_DEPENDS "tests/fuzz/fuzz_*.c" "tests/fuzz/fuzz_*.cc")
foreach(file IN LISTS fuzzers)
  kk_serves(serves ${file})
  kk_speaks_grpc(grpc ${file})
  if((serves AND NOT TARGET kakeya_serve) OR (grpc AND NOT TARGET kakeya_grpc))
    list(REMOVE_ITEM fuzzers ${file})
    get_filename_component(name ${file} NAME_WE)
    string(REGEX REPLACE "^fuzz_" "" short ${name})
    kk_skipped(fuzz.${short} "no libmicrohttpd, SQLite or libgrpc++")
  endif()
endforeach()
if(KK_FUZZ)
  foreach(file IN LISTS fuzzers)
    get_filename_component(name ${file} NAME_WE)
    kk_test_executable(${name} ${file})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endforeach()
  return()
endif()

foreach(file IN LISTS fuzzers)
  get_filename_component(name ${file} NAME_WE)
  string(REGEX REPLACE "^fuzz_" "" short ${name})
  kk_test_executable(replay_${short} ${file} tests/fuzz/replay.c)
  add_test(NAME fuzz.${short}
           COMMAND replay_${short} "${CMAKE_CURRENT_SOURCE_DIR}/tests/fuzz/corpus/${short}")
  set_tests_properties(fuzz.${short} PROPERTIES LABELS fuzz TIMEOUT 300)
endforeach()

add_custom_target(threads_tests)
if(TARGET kakeya_mlx) # a program finds modules beside itself
  add_custom_target(kakeya_mlx_beside_tests
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${CMAKE_BINARY_DIR}/tests"
    COMMAND "${CMAKE_COMMAND}" -E create_symlink "$<TARGET_FILE:kakeya_mlx>"
            "${CMAKE_BINARY_DIR}/tests/$<TARGET_FILE_NAME:kakeya_mlx>"
    DEPENDS kakeya_mlx)
endif()
pkg_check_modules(CMOCKA IMPORTED_TARGET cmocka)
kk_c_tests(unit)
kk_c_tests(parity)
kk_c_tests(fault)

# The examples of the documentation: what they print is looked at, and that they end well.
function(kk_example name)
  add_executable(example_${name} docs/examples/${name}.c)
  kk_flags(example_${name})
  target_include_directories(example_${name} PRIVATE include)
  target_link_libraries(example_${name} PRIVATE kakeya_static Threads::Threads m)
  set_target_properties(example_${name} PROPERTIES
                        RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  add_test(NAME e2e.example_${name}
           COMMAND example_${name} "${CMAKE_CURRENT_SOURCE_DIR}/models/tiny/verifier" ${ARGN})
endfunction()
kk_example(complete "def main():")
set_tests_properties(e2e.example_complete PROPERTIES LABELS e2e TIMEOUT 120
                     PASS_REGULAR_EXPRESSION "^def main\\(\\):\n +from sympy")
kk_example(sessions "def add(" "import os" "class Tree:" "for i in range(")
set_tests_properties(e2e.example_sessions PROPERTIES LABELS "e2e;threads" TIMEOUT 300
                     PASS_REGULAR_EXPRESSION "=== [0-9]+ passes, [0-9.]+ sessions in each")
add_dependencies(threads_tests example_sessions)

# Every prompt with every setting takes too long for a test, which is `make lossless-all`; a draw
# of them is a part of release.rerun.
kk_test_executable(lossless_all tests/lossless/lossless_all.c)

# Measures a server from outside: `make load`, `make soak`, `make chaos`, and their short tests.
if(TARGET kakeya_serve)
  file(GLOB serving_sources CONFIGURE_DEPENDS "tests/serving/*.c")
  kk_test_executable(serving ${serving_sources})
endif()

if(TARGET kakeya_cli)
  set(modules)
  if(TARGET serving)
    list(APPEND modules "KK_SERVING=$<TARGET_FILE:serving>")
  endif()
  if(TARGET kakeya_shared AND NOT KK_INSTRUMENTS) # one that any program can load
    list(APPEND modules "KK_LIBRARY=$<TARGET_FILE:kakeya_shared>")
  endif()
  if(TARGET kakeya_cuda)
    list(APPEND modules "KK_CUDA_MODULE=$<TARGET_FILE:kakeya_cuda>")
  endif()
  if(TARGET kakeya_mlx)
    list(APPEND modules "KK_MLX_MODULE=$<TARGET_FILE:kakeya_mlx>")
  endif()
  if(TARGET kakeya_train_module)
    list(APPEND modules "KK_TRAIN_MODULE=$<TARGET_FILE:kakeya_train_module>")
  endif()
  if(TARGET kakeya_serve_module)
    list(APPEND modules "KK_SERVE_MODULE=$<TARGET_FILE:kakeya_serve_module>")
  endif()
  if(TARGET kakeya_grpc_module)
    list(APPEND modules "KK_GRPC_MODULE=$<TARGET_FILE:kakeya_grpc_module>")
  endif()
  file(GLOB scripts CONFIGURE_DEPENDS "tests/e2e/*.sh")
  list(FILTER scripts EXCLUDE REGEX "/(lib|common)[^/]*$") # sourced by the others
  foreach(file IN LISTS scripts)
    get_filename_component(name ${file} NAME_WE)
    add_test(NAME e2e.${name} COMMAND bash "${file}")
    set_tests_properties(e2e.${name} PROPERTIES LABELS e2e TIMEOUT 600 SKIP_RETURN_CODE 77
      ENVIRONMENT "KAKEYA=$<TARGET_FILE:kakeya_cli>;KK_TEST_DATA=${test_data};${modules}")
  endforeach()
endif()

find_program(KK_PYTHON python3)
if(KK_PYTHON)
  file(GLOB scripts CONFIGURE_DEPENDS "tests/tools/*_test.py")
  foreach(file IN LISTS scripts)
    get_filename_component(name ${file} NAME_WE)
    string(REGEX REPLACE "_test$" "" short ${name})
    add_test(NAME tools.${short} COMMAND "${KK_PYTHON}" -B "${file}")
    set_tests_properties(tools.${short} PROPERTIES LABELS tools TIMEOUT 120)
  endforeach()
  if(TARGET kakeya_cli)
    add_test(NAME e2e.signals
             COMMAND "${KK_PYTHON}" -B "${CMAKE_CURRENT_SOURCE_DIR}/tests/signals/signals.py"
                     --kakeya $<TARGET_FILE:kakeya_cli> --count 24)
    set_tests_properties(e2e.signals PROPERTIES LABELS e2e TIMEOUT 600)
  endif()
else()
  kk_skipped(tools "no python3")
  kk_skipped(e2e.signals "no python3")
endif()

# An instrumented library would need an instrumented consumer, and the checks are the same in
# every build; both speak of ELF libraries.
if(NOT KK_INSTRUMENTS AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
  set(root "${CMAKE_CURRENT_SOURCE_DIR}")
  if(TARGET kakeya_cli)
    add_test(NAME release.rerun COMMAND bash "${root}/tests/release/rerun_test.sh"
                                        $<TARGET_FILE:kakeya_cli> "${root}"
                                        $<TARGET_FILE:lossless_all>)
    set_tests_properties(release.rerun PROPERTIES LABELS release TIMEOUT 1800)
  endif()
  if(KK_PYTHON AND CMOCKA_FOUND AND TARGET kakeya_eval)
    # A limit of the gate that is a step off, or a finding that is left out, fails one of its tests.
    set(mutate "${KK_PYTHON}" -B "${root}/tests/tools/mutate_gate.py" "${CMAKE_BINARY_DIR}")
    add_test(NAME release.gate_limits COMMAND ${mutate} --only KK_GATE_)
    add_test(NAME release.gate_rules COMMAND ${mutate} --clauses --draw 60)
    set_tests_properties(release.gate_limits release.gate_rules PROPERTIES LABELS release TIMEOUT 900
                         ENVIRONMENT "CC=${CMAKE_C_COMPILER}")
  endif()
  add_test(NAME package.install
           COMMAND bash "${root}/tests/package/package_test.sh" "${CMAKE_BINARY_DIR}" "${root}")
  set_tests_properties(package.install PROPERTIES LABELS package TIMEOUT 300 SKIP_RETURN_CODE 77
                       ENVIRONMENT "CC=${CMAKE_C_COMPILER}")
  if(TARGET kakeya_serve_module)
    add_test(NAME package.deb
             COMMAND bash "${root}/tests/package/deb_test.sh" "${CMAKE_BINARY_DIR}" "${root}")
    set_tests_properties(package.deb PROPERTIES LABELS package TIMEOUT 300 SKIP_RETURN_CODE 77)
    set_tests_properties(package.install package.deb PROPERTIES RESOURCE_LOCK install)
  endif()
  add_test(NAME lint.figures COMMAND bash "${root}/tests/lint/figures_test.sh")
  set_tests_properties(lint.figures PROPERTIES LABELS lint TIMEOUT 120)
  add_test(NAME lint.checks COMMAND bash "${root}/tests/lint/checks_test.sh")
  set_tests_properties(lint.checks PROPERTIES LABELS lint TIMEOUT 120
                       ENVIRONMENT "CC=${CMAKE_C_COMPILER}")
endif()

# The longest first, so that no core is left with one of them at the end: about their seconds, of
# which many are spent waiting in the scripts of the bridge and the server.
set(costs
  e2e.bridge_faults 40 e2e.serve_state 25 parity.mlx_session 28 parity.mlx_pages 24 e2e.rerun 20
  e2e.serving 20 parity.lossless 19 e2e.serve 18 parity.evicted 17 parity.invariance 17
  e2e.serve_page 16 parity.backend 15 e2e.page 15 e2e.ladder 14 parity.restored 13 e2e.bridge 12
  e2e.bench 12 e2e.mlx 11 e2e.grpc 11 package.deb 10 unit.trainer 9 unit.trace 9 parity.remote 9
  unit.needle 9 parity.turns 8 e2e.projection 7 e2e.eval 7)
while(costs)
  list(POP_FRONT costs name seconds)
  if(TEST ${name})
    set_tests_properties(${name} PROPERTIES COST ${seconds})
  endif()
endwhile()
