# Two commands matter: `make demo` and `make test`. Each sets up what it needs in VENV.
export PYTHON
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test lint bench test-gpu setup clean

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

test-gpu:
	@extra=$$(scripts/cuda_extra.sh $(VENV)) && scripts/setup.sh $(VENV) prover,test$$extra
	$(BIN)/python -m pytest tests/gpu

clean:
	rm -rf build dist demo-out $(VENV)
