# Two commands matter: `make demo` and `make test`. Each sets up what it needs in VENV.
export PYTHON
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test lint bench results test-gpu clean

demo:
	@scripts/setup.sh $(VENV) bench,prover
	$(BIN)/python -m bench.demo

test:
	@scripts/setup.sh $(VENV) prover,test
	$(BIN)/python -m pytest

lint:
	@scripts/setup.sh $(VENV) lint,prover,test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.hpp' '*.cuh' '*.cu')

bench:
	@scripts/setup.sh $(VENV) bench,prover
	$(BIN)/python -m bench.release
	$(BIN)/python -m bench.kernels 14 16

# The figures that the README shows, made again: about fifteen minutes on an otherwise idle machine.
results:
	@scripts/setup.sh $(VENV) bench,prover,test
	$(BIN)/python -m bench.demo
	cp demo-out/demo.json demo-out/demo.md demo-out/demo.png bench/results
	$(BIN)/python -m bench.release --json bench/results/release.json --markdown bench/results/release.md
	$(BIN)/python -m bench.peers 12 16 18 --curve bn128 bls12381 --rounds 1 \
	  --json bench/results/peers.json --markdown bench/results/peers.md

test-gpu:
	@extra=$$(scripts/cuda_extra.sh $(VENV)) && scripts/setup.sh $(VENV) prover,test$$extra
	$(BIN)/python -m pytest tests/gpu

clean:
	rm -rf build dist demo-out $(VENV)
