# A thin front to CMake and Ninja; `make help` says what there is.
#
# The release build lives in build/, instrumented ones in build-NAME/.  `make CC=clang` picks a
# compiler, PREFIX and DESTDIR mean what they always mean.

BUILD   ?= build
PREFIX  ?= /usr/local
DESTDIR ?=
SECONDS ?= 300
BENCH   ?= --synthetic 26b-a4b:q4_0:4 -n 32
LOAD    ?= --clients 8
MINUTES ?= 30
HOURS   ?=
SOAK    ?= --clients 8
CHAOS   ?= --clients 4

cmake_args := -G Ninja -DCMAKE_BUILD_TYPE=Release
ifneq ($(origin CC),default)
cmake_args += -DCMAKE_C_COMPILER=$(CC)
endif

soak_seconds := $(if $(HOURS),$(shell expr 3600 \* $(HOURS)),$(shell expr 60 \* $(MINUTES)))

.PHONY: all server setup demo test check lint format install uninstall deb coverage fuzz asan tsan valgrind bench \
        lossless-all serving load soak chaos signals cuda test-gpu bench-gpu clean help

all: $(BUILD)/build.ninja
	@cmake --build $(BUILD) --target kakeya_static kakeya_shared kakeya_cli kakeya_modules

server: $(BUILD)/build.ninja
	@cmake --build $(BUILD) --target kakeya_cli kakeya_serve_module

$(BUILD)/build.ninja:
	@command -v cmake ninja >/dev/null || echo 'tools are missing: make setup' >&2
	@cmake -S . -B $(BUILD) $(cmake_args)

setup: ; @scripts/setup build train serve grpc test check
cuda:
	@scripts/setup build cuda
	@cmake -S . -B $(BUILD) $(cmake_args) -DKK_CUDA=ON
	@$(MAKE) --no-print-directory all
test-gpu: ; @scripts/gpu test
bench-gpu: ; @scripts/gpu bench
demo: ; @scripts/demo
test: ; @scripts/test release
check: ; @scripts/test check
lint: ; @scripts/lint
format: ; @scripts/lint --fix
coverage: ; @scripts/coverage
fuzz: ; @scripts/fuzz $(SECONDS)
asan: ; @scripts/test asan
tsan: ; @scripts/test tsan
valgrind: ; @scripts/test valgrind

install: all
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)"

deb: all
	@cpack -G DEB --config $(BUILD)/CPackConfig.cmake -B $(BUILD)/package
	@mv $(BUILD)/package/kakeya.deb $(BUILD)/kakeya.deb
	@echo 'sudo apt install ./$(BUILD)/kakeya.deb'

uninstall: all
	@scripts/uninstall "$(BUILD)" "$(PREFIX)" "$(DESTDIR)"

bench: all
	$(BUILD)/kakeya bench $(BENCH)

lossless-all: $(BUILD)/build.ninja
	@cmake --build $(BUILD) --target lossless_all
	$(BUILD)/tests/lossless_all --report bench/results/lossless-all.json

serving: $(BUILD)/build.ninja
	@cmake --build $(BUILD) --target kakeya_cli kakeya_modules serving

load: serving
	$(BUILD)/tests/serving load --kakeya $(BUILD)/kakeya $(LOAD)
soak: serving
	$(BUILD)/tests/serving soak --kakeya $(BUILD)/kakeya --seconds $(soak_seconds) $(SOAK)
chaos: serving
	$(BUILD)/tests/serving chaos --kakeya $(BUILD)/kakeya $(CHAOS)

signals: all
	@python3 -B tests/signals/signals.py --kakeya $(BUILD)/kakeya

clean:
	rm -rf build build-*

help:
	@echo 'make            build the library and the command line in build/'
	@echo 'make server     the command line and `kakeya serve` alone, without gRPC and training'
	@echo 'make demo       set up, build, and show the engine at work'
	@echo 'make test       set up, build, and run every test once (under 10 minutes on two cores)'
	@echo 'make check      what CI adds: stored reports again, all draws, ASan+UBSan, TSan, arm64, CUDA, lint'
	@echo 'make lint       format, clang-tidy, cppcheck, include direction, symbols, sizes, messages'
	@echo 'make format     rewrite the C files with clang-format'
	@echo 'make install    PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)'
	@echo 'make uninstall  removes what that has put there'
	@echo 'make deb        a package for Debian and its kin: $(BUILD)/kakeya.deb'
	@echo 'make coverage   line coverage of src/, refused under 85 %'
	@echo 'make fuzz       every fuzzer for SECONDS=$(SECONDS) each'
	@echo 'make asan       that part of make check alone; also tsan, and valgrind (slow)'
	@echo 'make bench      BENCH="$(BENCH)"'
	@echo 'make lossless-all  drafted against plain decoding in every setting (about half an hour)'
	@echo 'make load       speed of the server with 8 clients (a minute): LOAD="$(LOAD)"'
	@echo 'make soak       8 clients for MINUTES=$(MINUTES), or HOURS=4: memory, K/V and latency stay'
	@echo 'make chaos      200 kills, faults, 100,000 malformed requests each over HTTP and gRPC (about 8 minutes)'
	@echo 'make signals    1,000 each of INT, TERM and KILL to what writes files (about 10 minutes)'
	@echo 'make cuda       the same with the CUDA device, for which a compiler is fetched if need be'
	@echo 'make test-gpu   the tests that need a GPU, transformers beside it (5 minutes)'
	@echo 'make bench-gpu  the same, then both timed: a report in bench/results'
	@echo 'make setup      install the Debian packages that are missing'
	@echo 'make clean      remove build/ and build-*/'
