# The verbs of the project; each sets up what it needs.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
SEED ?= 1
FAULTS ?= 1000
HELM ?= v3.22.0
# The minor version of Kubernetes that its release is made with (client-go in its go.mod).
HELM_KUBERNETES ?= 37
# Tests start the agent hundreds of times: where nothing compiled may be kept, each of them compiles it again.
unexport PYTHONDONTWRITEBYTECODE
# Processes that tests run on: auto is three for each core, 0 is none but pytest's own.
WORKERS ?= auto

.PHONY: setup lint check test planted demo recording pages docs image tools chart manifests bench bench-check peers cluster cluster-stop cluster-test campaign proto lock clean help

help:  ## Show the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t14

setup: .venv/ready  ## Install the locked dependencies and the agent into .venv; PYTHON

.venv/ready: requirements/dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON). Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, found $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "installing the locked dependencies into .venv: half a minute, on a busy machine some"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# What needs built peers, helm or a node of its own has a verb of its own: peers, chart, cluster-test.
NEEDS_MORE = --ignore=tests/peers --ignore=tests/deploy --ignore=tests/realnode --ignore-glob='*_beside_the_real.py'

demo: setup  ## Run the agent on the embedded node and watch its day
	$(BIN)/xpu-agent demo

recording: setup  ## Record the demo again for the README: docs/images/demo.svg, .cast
	$(BIN)/python -m pages.record docs/images/demo $(BIN)/xpu-agent demo

test: setup  ## Pass the tests: no root, no GPU, no cluster; WORKERS, EVERY=1
	@[[ "$(WORKERS)" =~ ^(auto|[0-9]+)$$ ]] || { echo "WORKERS is auto or a number of processes, not $(WORKERS)" >&2; exit 1; }
	$(BIN)/python -m pytest $(NEEDS_MORE) -n $(WORKERS) --durations=30 $(if $(EVERY),--every-case,--forecast)

planted: setup  ## Plant the faults of tests/planted, see that tests catch them; FAULT="NAME ..."
	PYTHONPATH=tests $(BIN)/python -m planted run $(FAULT)

lint: setup  ## Format, lint, types, rooms; warnings are errors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test docs  ## What a change must pass: make lint, make test, make docs

pages: setup  ## Write again what docs/ has of the code: keys, metrics, findings, the example vendor
	$(BIN)/python -m pages

docs: setup .venv/docs-ready  ## Build the documentation into build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

.venv/docs-ready: requirements/docs.txt | .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

# What takes longest comes first, so that no process is left with it in the end: one process has all tests on an API
# server, and a fault of the campaign takes a minute. helm renders the chart that an API server judges.
peers: setup tools  ## Build the real device managers and API server (Go), run the scenarios with them; EVERY=1
	tests/peers/build.sh
	$(BIN)/python -m pytest tests/peers tests/campaign/test_campaign.py tests/scenarios tests/testing/test_*_beside_the_real.py --require-peers --require-tools $(if $(EVERY),--every-case) --durations=30 -n $(WORKERS)

cluster: setup  ## Leave a real cluster running: one node, containerd, the agent by its chart, pods with cards (root)
	tests/realnode/build.sh
	tests/realnode/cluster.sh start

cluster-stop:  ## End it; nothing stays but its logs
	tests/realnode/cluster.sh stop

cluster-test: setup  ## Run the scenarios on a real node: our image and chart, a real kubelet (root); SHORT=1
	tests/realnode/build.sh
	tests/realnode/enter.sh test $(BIN)/python -m pytest tests/realnode --require-realnode $(if $(SHORT),-m "not long")

campaign: setup  ## Random histories of nodes, faults and hostile inputs, write docs/reliability.md; SEED, FAULTS
	tests/peers/build.sh peers
	HYPOTHESIS_PROFILE=campaign $(BIN)/python -m pytest tests/histories -n0 -o timeout=0 --hypothesis-seed=$(SEED)
	PYTHONPATH=tests $(BIN)/python -m campaign --seed $(SEED) --faults $(FAULTS) --fuzz 10000 --koordinator --report docs/reliability

image: setup  ## Build the container image into build/image/xpu-agent.tar; BASE=python:3.13-slim
	PYTHON=$(BIN)/python deploy/image.sh

tools: build/tools/helm  ## Build helm into build/tools (Go)

# As helm's own release has it: a helm that is only installed renders for Kubernetes 1.20 where no version is named.
HELM_FLAGS = $(foreach it,chartutil lint/rules,-X helm.sh/helm/v3/pkg/$(it).k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$(it).k8sVersionMinor=$(HELM_KUBERNETES))
# Named by version and flags, so that a helm of other programs is built again.
HELM_STAMP = build/tools/helm-$(HELM)-$(shell echo '$(HELM_FLAGS)' | cksum | cut -d' ' -f1).stamp

build/tools/helm: $(HELM_STAMP)
	GOBIN=$(CURDIR)/build/tools CGO_ENABLED=0 go install -ldflags "$(HELM_FLAGS)" helm.sh/helm/v3/cmd/helm@$(HELM)
	@touch $@

$(HELM_STAMP):
	@mkdir -p $(@D)
	@rm -f build/tools/helm-*.stamp
	@touch $@

# What an API server says of the chart, where there is one; part of `make peers`, too.
ON_A_SERVER = tests/peers/test_chart.py

chart: setup tools  ## Lint the chart, render its matrix, test manifests, examples and alert rules
	build/tools/helm lint --strict deploy/chart/xpu-agent
	$(BIN)/python -m pytest tests/deploy $(ON_A_SERVER) --require-tools -n $(WORKERS)

manifests: setup tools  ## Render deploy/manifests from the chart again
	HELM=build/tools/helm deploy/manifests.sh

# RIVAL_ARGS takes the rest of the command line, so nothing comes after it.
BENCH = $(BIN)/python -m bench $(if $(QUICK),--quick) $(if $(ROWS),--rows $(ROWS))
BENCH_RIVAL = $(if $(RIVAL),--rival $(RIVAL) --rival-args $(RIVAL_ARGS))

bench: setup  ## Measure, and print our figure beside the others; QUICK=1, ROWS="NAME ...", RIVAL, RIVAL_ARGS
	tests/peers/build.sh peers
	$(BENCH) $(BENCH_RIVAL)

bench-check: setup  ## The same, and fail where a target is missed, in some rows by more than half
	tests/peers/build.sh peers
	$(BENCH) --check $(BENCH_RIVAL)

proto: setup  ## Generate agent/kubelet/pb from proto/
	PYTHON=$(BIN)/python proto/generate.sh

lock: setup  ## Resolve the dependencies again into requirements/*.txt
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet pyproject.toml -o requirements/runtime.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet --group dev pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet --group docs -c requirements/dev.txt -o requirements/docs.txt

clean:  ## Remove what the verbs made
	rm -rf .venv build dist
