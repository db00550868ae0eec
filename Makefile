# All set-up happens here, in a virtual environment; nothing else is needed than Python 3.11-3.13 and a C++ compiler.
PYTHON ?= python3
VENV ?= .venv
# The version CI holds; any from 2.9 on works.
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-for-development

.PHONY: test check lint format types site clean demo

$(STAMP): pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q "$(TORCH)"
	$(BIN)/pip install -q -e ".[run,llm,nvrtc,docs,dev]"
	touch $@

test: $(STAMP) lint types
	$(BIN)/agentcompile check
	$(BIN)/pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

site: $(STAMP)
	$(BIN)/agentcompile site build

demo: $(STAMP)
	$(BIN)/python -m generator.demo

clean:
	rm -rf $(VENV) build dist
