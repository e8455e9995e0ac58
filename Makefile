# The two commands: `make serve` and `make test`. Each installs what is missing, then builds.
BUILD := build
MODEL := models/tiny-r1
PORT  := 8000
CUDA  := $(or $(FATHOM_CUDA),AUTO)

.PHONY: serve build test hostile soak mutants fuzz bundle accuracy sanitize format check tidy clean

serve: build
	$(BUILD)/bin/fathom serve $(MODEL) --port $(PORT)

build:
	@tools/install_deps.sh
	@cmake -S . -B $(BUILD) -G Ninja -DFATHOM_TESTS=OFF -DFATHOM_CUDA=$(CUDA) >/dev/null
	@cmake --build $(BUILD) --target fathom

test:
	@tools/install_deps.sh --test
	@FATHOM_CUDA=$(CUDA) tools/run_tests.sh $(BUILD)

# What runs on a machine with a GPU, see tools/gpu_check.sh.
bundle:
	@tools/install_deps.sh --test
	@cmake -S . -B $(BUILD) -G Ninja -DFATHOM_TESTS=ON -DFATHOM_CUDA=ON -DFATHOM_SHARED_KERNELS=ON >/dev/null
	@cmake --build $(BUILD) --target fathom gpu_tests gpu_benches
	@tools/make_bundle.sh $(BUILD)

# Clients that mean harm, for some twenty minutes where `make test` takes seconds. Not beside other
# work: gate.py also judges how long others wait.
hostile: build
	@tools/python_env.sh $(BUILD)/venv
	FATHOM_HOSTILE_S=600 FATHOM_BINARY=$(BUILD)/bin/fathom $(BUILD)/venv/bin/python -m pytest -q tests/e2e/hostile
	FATHOM_BINARY=$(BUILD)/bin/fathom $(BUILD)/venv/bin/python tests/e2e/hostile/gate.py --seconds 4

# The same for an hour, with a picture of memory and descriptors in build/soak.
soak: build
	@tools/python_env.sh $(BUILD)/venv
	FATHOM_BINARY=$(BUILD)/bin/fathom $(BUILD)/venv/bin/python tests/e2e/hostile/soak.py --out $(BUILD)/soak

# Whether the tests notice faults that are put into the code on purpose.
mutants:
	@tools/install_deps.sh --test
	python3 tests/mutants/run.py $(BUILD)/mutants

# libFuzzer, for FATHOM_FUZZ_SECONDS each target.
fuzz:
	@tools/install_deps.sh --fuzz
	tools/run_fuzz.sh

accuracy: build
	@tools/python_env.sh $(BUILD)/venv
	$(BUILD)/venv/bin/python tests/e2e/accuracy.py --binary $(BUILD)/bin/fathom --model $(MODEL)

sanitize:
	@tools/install_deps.sh --test
	@tools/run_sanitizers.sh

format:
	@git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format-14 -i

check:
	@tools/check_layering.py
	@tools/check_sizes.py
	@python3 tests/mutants/run.py --check
	@tools/plan_errors.py --rates
	@tools/make_performance.py --canary
	@tools/make_performance.py --check
	@git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format-14 --dry-run -Werror

# Not part of `make test`: it takes as long as a build, and needs clang.
tidy:
	@tools/install_deps.sh --tidy
	@cmake -S . -B $(BUILD) -G Ninja -DFATHOM_TESTS=ON >/dev/null
	@run-clang-tidy-19 -p $(BUILD) -quiet -j2 '/(apps|src)/'

clean:
	rm -rf $(BUILD)
