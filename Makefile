# Needs Python 3.11, make and git; everything else is installed by the first target
# that needs it. See CONTRIBUTING.md.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
CLIENT := .venv/client/bin/python
SERVER := .venv/server/bin/python
SETUP  := $(PYTHON) tools/environment.py setup

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help setup setup-client setup-server print-kvflow demo report test test-full test-legacy test-versions lint format lock prune clean

help:
	@echo "make demo          run a ten-agent workflow on real servers and compare"
	@echo "make test          lint, type checks and all tests"
	@echo "make test-full     those, every server configuration and the long traces"
	@echo "make test-legacy   agentUniverse and ag2, in environments of their own (1 GB)"
	@echo "make test-versions the oldest and newest LangGraph, Python 3.11 to 3.13"
	@echo "make setup         make both environments (.venv/client, .venv/server)"
	@echo "make report        all results on one page, build/report/index.html"
	@echo "make print-kvflow  print the path of the kvflow command"
	@echo "make lint          ruff and mypy; make format applies ruff's fixes"
	@echo "make lock          resolve requirements/*.in again"
	@echo "make prune         remove environments of other lock files; make clean: .venv"

setup: setup-client setup-server

setup-client:
	@$(SETUP) client

setup-server:
	@$(SETUP) server

print-kvflow: setup-server
	@echo "$(CURDIR)/.venv/server/bin/kvflow"

demo: setup
	@KVFLOW_SERVER_COMMAND="$(CURDIR)/.venv/server/bin/kvflow" $(CLIENT) examples/demo.py

test: setup
	@$(PYTHON) tools/checks.py lint client openai-2 server

test-full: setup
	@$(PYTHON) tools/checks.py lint client openai-2 server full

test-legacy: setup-server
	@$(SETUP) ag2 ag2_network agentuniverse
	@$(PYTHON) tools/checks.py legacy

report: setup-server
	@.venv/server/bin/kvflow report

test-versions:
	@$(PYTHON) tools/versions.py

lint: setup-client
	@$(PYTHON) tools/checks.py lint

format: setup-client
	@$(CLIENT) -m ruff check --fix --quiet . && $(CLIENT) -m ruff format .

lock:
	@$(PYTHON) tools/environment.py lock

prune:
	@$(PYTHON) tools/environment.py prune

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache
