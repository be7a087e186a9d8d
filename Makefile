# Everything by one word: `make help`. CMake and CMakePresets.json do the work.

BUILD := build
PREFIX ?= /usr/local
# Arguments of the commands below, e.g. make bench BENCH="--workload k3 --threads 2"
BENCH ?= --workload grid
COMPARE ?=
GUARD ?=
BASE ?= origin/main

.DEFAULT_GOAL := help
.PHONY: help run test build all bench bench-compare bars guard compare install format tidy ci setup setup-build clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

run: build  ## build, then see KDA prefill run on real prompt lengths, checked and timed
	$(BUILD)/kda demo

test: all  ## build everything, run every test
	ctest --preset release -j2

build: $(BUILD)/build.ninja  ## build/kda, build/libkda.so and build/libkda.a; no tests
	cmake --build --preset release --target kda_cli kda_shared kda_static

all: setup  ## build everything, tests included
	cmake --preset release
	cmake --build --preset release

# Without tests, which need packages of their own, until `make all` or `make test` adds them.
$(BUILD)/build.ninja: | setup-build
	cmake --preset release -DKDA_BUILD_TESTS=OFF

setup-build:
	@scripts/setup build

setup:
	@scripts/setup test

bench: build  ## kda bench; arguments in BENCH=
	$(BUILD)/kda bench $(BENCH)

bench-compare: build  ## against ONNX Runtime (installed from PyPI on first use); COMPARE=
	@scripts/setup compare
	bench/compare/compare $(COMPARE)

bars: build  ## every bar of docs/performance.md, beside the peers (15 minutes); COMPARE=
	@scripts/setup compare
	bench/compare/compare --set bars $(COMPARE)

guard: build  ## is anything slower than the commit before, on any instruction set? GUARD=
	bench/guard $(GUARD)

compare: test  ## is this tree right, and faster than BASE= (a commit)?
	scripts/compare_commits $(BASE)

install: build  ## into PREFIX= (/usr/local), below DESTDIR= if given
	cmake --install $(BUILD) --prefix $(PREFIX)

format:  ## clang-format over the sources
	scripts/format

tidy:  ## clang-tidy over src and cli
	scripts/tidy

ci:  ## what CI runs
	.ci/run

clean:  ## remove build folders
	rm -rf build build-*
