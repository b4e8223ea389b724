# Two commands matter: `make demo` and `make test`. Each sets up what it needs in VENV.
export PYTHON
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test stress long-test test-interop torch lint docs wheels bench bench-core bench-hook bench-replay \
  bench-dask bench-pinned bench-gpu bench-pipeline results test-gpu test-service-page \
  kernels-report clean

demo:
	@scripts/setup.sh $(VENV) bench,prover
	$(BIN)/python -m bench.demo

test:
	@scripts/setup.sh $(VENV) prover,test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# The stress test for as long as STRESS_SECONDS says.
STRESS_SECONDS ?= 600
stress:
	@scripts/setup.sh $(VENV) test
	BIGMEM_STRESS_SECONDS=$(STRESS_SECONDS) $(BIN)/python -m pytest -s --timeout=0 \
	  tests/bigmem/test_stress.py

# A million steps of the extent map beside its model: five to twenty minutes.
long-test:
	@scripts/setup.sh $(VENV) test
	$(BIN)/python -m pytest -s -m long

# The libraries that bigmem must live with, NumPy's own test suite among them, under the hook.
# The CPU build of torch comes first, from its own index: PyPI's brings CUDA along.
TORCH ?= 2.13.0+cpu
test-interop:
	@scripts/setup.sh $(VENV) test
	@$(MAKE) torch
	@scripts/setup.sh $(VENV) test,interop
	$(BIN)/python -m pytest -v -o norecursedirs=fixtures tests/libraries

torch:
	$(BIN)/python -m pip install --disable-pip-version-check -q \
	  --extra-index-url https://download.pytorch.org/whl/cpu torch==$(TORCH)

lint:
	@scripts/setup.sh $(VENV) lint,prover,test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.hpp' '*.cuh' '*.cu')

# The site, in build/docs; its warnings are errors.
docs:
	@scripts/setup.sh $(VENV) docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

# A wheel for each Python in dist/, tested where there is no compiler; VERSIONS="3.12" for fewer.
wheels:
	@scripts/wheels.sh $(VERSIONS)

bench:
	@scripts/setup.sh $(VENV) bench,prover
	$(BIN)/python -m bench.release
	$(BIN)/python -m bench.kernels 14 16

# The figures of the allocator core: a quarter of an hour on an otherwise idle machine. To compare
# jemalloc, mimalloc and tcmalloc: apt install libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4.
bench-core:
	@scripts/setup.sh $(VENV) bench
	$(BIN)/python -m bench.core --json bench/results/core.json --markdown docs/core-figures.md

# What the NumPy hook costs and gains: twenty minutes on an otherwise idle machine.
bench-hook:
	@scripts/setup.sh $(VENV) bench,pipelines
	$(BIN)/python -m bench.hook --json bench/results/hook.json --markdown bench/results/hook.md
	$(BIN)/python -m bench.pipelines --json bench/results/pipelines.json \
	  --markdown bench/results/pipelines.md

# Real programs' logs replayed on every allocator: a quarter of an hour on an otherwise idle machine.
# PRELOAD_DIR may hold jemalloc, mimalloc and tcmalloc, as for bench-core.
bench-replay:
	@scripts/setup.sh $(VENV) bench,prover,pipelines
	$(BIN)/python -m bench.replay $(if $(PRELOAD_DIR),--preload-dir $(PRELOAD_DIR)) \
	  --json bench/results/replay.json --markdown bench/results/replay.md
	$(BIN)/python -m bench.insert bench/results/replay.md docs/replay.md

# Dask with and without the plugin: half an hour on an otherwise idle machine of two cores or more.
bench-dask:
	@scripts/setup.sh $(VENV) bench,test
	$(BIN)/python -m bench.dask --json bench/results/dask.json --markdown bench/results/dask.md
	$(BIN)/python -m bench.insert bench/results/dask.md docs/dask.md

# Pinned memory, everyone's: four minutes on a machine with an NVIDIA GPU. CuPy comes along; PyTorch
# and RMM are compared where they are installed (rmm-cu13 from PyPI).
bench-pinned:
	@extra=$$(scripts/cuda_extra.sh $(VENV)) && scripts/setup.sh $(VENV) bench$$extra
	$(BIN)/python -m bench.pinned --json bench/results/pinned.json \
	  --markdown bench/results/pinned.md

# The figures that the README shows, made again: about fifteen minutes on an otherwise idle machine.
results:
	@scripts/setup.sh $(VENV) bench,prover,test
	$(BIN)/python -m bench.demo
	cp demo-out/demo.json demo-out/demo.md demo-out/demo.png bench/results
	$(BIN)/python -m bench.release --json bench/results/release.json --markdown bench/results/release.md
	$(BIN)/python -m bench.layers --json bench/results/layers.json --markdown bench/results/layers.md
	$(BIN)/python -m bench.costs --json bench/results/costs.json --markdown bench/results/costs.md
	$(BIN)/python -m bench.insert bench/results/costs.md docs/explanation.md
	$(BIN)/python -m bench.peers 12 16 18 --curve bn128 bls12381 --rounds 1 \
	  --json bench/results/peers.json --markdown bench/results/peers.md

# The service's status page in headless Chromium (apt install chromium-headless-shell), which
# `make test` looks at only where there is one.
test-service-page:
	@scripts/setup.sh $(VENV) prover,test
	PROVER_TEST_BROWSER=1 $(BIN)/python -m pytest tests/service/test_page.py

# Needs a network, like the others: docs/gpu.md tells what to do without.
test-gpu:
	@extra=$$(scripts/cuda_extra.sh $(VENV)) && scripts/setup.sh $(VENV) prover,test$$extra
	$(BIN)/python -m pytest tests/gpu

# The figures of docs/gpu.md: six minutes on an otherwise idle machine with a GPU.
bench-gpu:
	@extra=$$(scripts/cuda_extra.sh $(VENV)) && scripts/setup.sh $(VENV) bench,prover$$extra
	$(BIN)/python -m bench.gpu --json bench/results/gpu.json --markdown bench/results/gpu.md
	$(BIN)/python -m bench.insert bench/results/gpu.md docs/gpu.md

# The figures of docs/pipeline.md: an hour on an otherwise idle machine. What was stopped goes on.
# jemalloc and mimalloc: apt install libjemalloc2 libmimalloc2.0, or PRELOAD_DIR, as for bench-core.
bench-pipeline:
	@scripts/setup.sh $(VENV) bench,prover
	$(BIN)/python -m bench.pipeline --log2 14 16 -o pipeline-out \
	  $(if $(PRELOAD_DIR),--libraries $(PRELOAD_DIR))
	cp pipeline-out/pipeline-cpu*.* bench/results
	$(BIN)/python -m bench.insert bench/results/pipeline-cpu.md docs/pipeline.md

# Registers and spills of the CUDA kernels; needs no GPU. Takes some minutes.
kernels-report:
	@scripts/setup.sh $(VENV) prover,test
	$(BIN)/python -m bench.kernel_resources

clean:
	rm -rf build dist demo-out $(VENV)
