# Every target sets up what it needs: one virtual environment, created once and updated when pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= auto
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
PY := $(BIN)/python
OLDEST := .venv-oldest
OLDEST_PY := $(subst $(VENV),$(OLDEST),$(PY))
NEWEST := .venv-newest
NEWEST_PY := $(subst $(VENV),$(NEWEST),$(PY))
SUITE := .venv-transformers
SUITE_PY := $(subst $(VENV),$(SUITE),$(PY))
BARE := .venv-bare
BARE_PY := $(subst $(VENV),$(BARE),$(PY))
TRANSFORMERS ?= transformers
EXTRAS := app docs excel export heif metrics-data peers peft ray regions serve smolvlm space
TESTS_alone := tests/data tests/metrics tests/pipelines tests/processing
TESTS_app := tests/review tests/cli/test_review.py
TESTS_docs := tests/test_site.py
TESTS_export := tests/onnx
TESTS_excel := tests/metrics/test_spreadsheet_tables.py
TESTS_heif := tests/processing/test_heif.py
TESTS_metrics-data := tests/metrics/test_meteor_tables.py
TESTS_peers := tests/peers
TESTS_peft := tests/hub/test_adapters.py
TESTS_ray := tests/captioning/test_ray.py
TESTS_regions := tests/features/test_regions.py
TESTS_serve := tests/server
TESTS_smolvlm := tests/pipelines/test_other_models.py
TESTS_space := tests/hub/test_space_page.py
PYTEST := -m pytest -n $(JOBS) --dist worksteal
STAMP := $(VENV)/installed
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
# Without compiled files, each of the many processes of the tests compiles what it imports, torch and transformers too.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo docs dist test quick test-all test-oldest test-newest test-extras test-alone test-transformers test-without-torch release-check attack quality style bench reference-models metric-modules clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(STAMP): pyproject.toml release/build_backend.py default_captioner/pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check uv || true
	$(PY) -m uv pip install --quiet --python $(PY) -e ".[dev]" -e ./default_captioner || $(PY) -m pip install --quiet -e ".[dev]" -e ./default_captioner
	touch $(STAMP)

demo: $(STAMP)  ## train on drawn images and write demo/index.html (about 5 minutes)
	OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE $(BIN)/hf-captioners demo --output_dir demo

docs: $(STAMP)  ## build the site: build/site/index.html
	$(PY) -m uv pip install --quiet --python $(PY) -e ".[docs]" || $(PY) -m pip install --quiet -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "Wrote build/site/index.html. Its search needs a server: $(PY) -m http.server --directory build/site"

dist: $(STAMP)  ## build wheels and source distributions of both projects: dist
	rm -rf dist
	$(PY) -m build --no-isolation --outdir dist .
	$(PY) -m build --no-isolation --outdir dist default_captioner

test: $(STAMP)  ## run the fast tests
	$(PY) $(PYTEST)

quick: $(STAMP)  ## run tests in one process: T=tests/modeling/test_layers.py ARGS="-k softmax"; without T, those of changed files
	T="$(or $(T),$$($(PY) -m tests.changed))"; test -n "$$T" || { echo "No changed file has tests."; exit; }; \
		$(PY) -m pytest -q -n0 $$T $(ARGS)

test-all: $(STAMP)  ## run all tests, slow ones included
	$(PY) $(PYTEST) -m ""

$(OLDEST)/installed: pyproject.toml
	test -x $(OLDEST_PY) || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST_PY) -m pip install --quiet --disable-pip-version-check uv
	$(OLDEST_PY) -m uv pip install --quiet --python $(OLDEST_PY) --resolution lowest-direct -e ".[test]"
	touch $(OLDEST)/installed

test-oldest: $(OLDEST)/installed  ## run the fast tests on the oldest supported versions of all dependencies
	$(OLDEST_PY) $(PYTEST)

test-newest:  ## run the fast tests on the newest versions: TRANSFORMERS=git+https://github.com/huggingface/transformers
	test -x $(NEWEST_PY) || $(PYTHON) -m venv $(NEWEST)
	$(NEWEST_PY) -m pip install --quiet --disable-pip-version-check uv
	$(NEWEST_PY) -m uv pip install --quiet --python $(NEWEST_PY) --upgrade -e ".[test]" "$(TRANSFORMERS)"
	$(NEWEST_PY) -c "import transformers; print('transformers', transformers.__version__)"
	$(NEWEST_PY) $(PYTEST)

# The tests have a configuration of their own: theirs are unittest classes with subtests, and ours are not collected.
test-transformers:  ## run transformers' own common tests on all captioners; ARGS="-k visualgpt", TRANSFORMERS=transformers==5.24.0, OUTCOMES=FILE
	test -x $(SUITE_PY) || $(PYTHON) -m venv $(SUITE)
	$(SUITE_PY) -m pip install --quiet --disable-pip-version-check uv
	$(SUITE_PY) -m uv pip install --quiet --python $(SUITE_PY) --upgrade -e ".[test]" "$(TRANSFORMERS)" "parameterized>=0.9" "psutil>=7"
	$(SUITE_PY) -m tests.transformers_suite.distribution $(SUITE)/suite
	PYTHONPATH="$(CURDIR)/$(SUITE)/suite" $(SUITE_PY) $(PYTEST) -c tests/transformers_suite/pytest.ini --rootdir . \
		--confcutdir tests/transformers_suite tests/transformers_suite/captioners.py $(if $(OUTCOMES),--outcomes $(OUTCOMES)) $(ARGS)

test-extras: $(EXTRAS:%=test-extra-%) test-without-torch  ## run the tests of each extra in an environment of its own, .venv-extra-NAME

test-alone:  ## run tests in an environment without any extra, .venv-extra-alone
	$(PYTHON) -m venv --clear .venv-extra-alone
	$(subst $(VENV),.venv-extra-alone,$(PY)) -m pip install --quiet --disable-pip-version-check uv
	$(subst $(VENV),.venv-extra-alone,$(PY)) -m uv pip install --quiet --python $(subst $(VENV),.venv-extra-alone,$(PY)) \
		-e . "pytest>=9" "pytest-xdist>=3.8" "hypothesis>=6.150"
	$(subst $(VENV),.venv-extra-alone,$(PY)) $(PYTEST) $(TESTS_alone)

test-extra-%:
	$(PYTHON) -m venv --clear .venv-extra-$*
	$(subst $(VENV),.venv-extra-$*,$(PY)) -m pip install --quiet --disable-pip-version-check uv
	$(subst $(VENV),.venv-extra-$*,$(PY)) -m uv pip install --quiet --python $(subst $(VENV),.venv-extra-$*,$(PY)) \
		-e ".[$*]" "pytest>=9" "hypothesis>=6.150" "selenium>=4.51"
	$(subst $(VENV),.venv-extra-$*,$(PY)) -m pytest -m "" $(TESTS_$*)

test-without-torch: $(STAMP)  ## run an exported captioner in an environment without torch and transformers
	test -x $(BARE_PY) || $(PYTHON) -m venv $(BARE)
	$(BARE_PY) -m pip install --quiet --disable-pip-version-check numpy pillow tokenizers onnxruntime
	rm -rf $(BARE)/captions && mkdir $(BARE)/captions
	$(PY) -m tests.onnx.without_torch make $(BARE)/captions
	$(BARE_PY) tests/onnx/without_torch.py run $(BARE)/captions

release-check: $(STAMP)  ## build and install both distributions, with each extra, and try them: ARGS="--pythons 3.11 --combinations alone default"
	$(PY) -m release.check $(ARGS)

attack: $(STAMP)  ## attack files and jobs with random damage, resumable: SEED="1 2 3" COUNT=100 ARGS="--minutes 20"
	TOKENIZERS_PARALLELISM=false $(PY) -m tests.robustness.attack --seed $(or $(SEED),1) --count $(or $(COUNT),100) $(ARGS)

quality: $(STAMP)  ## check style, formatting and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

style: $(STAMP)  ## format the code
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(STAMP)  ## compare decoding speed with other decoders of the same weights; ARGS=--quick for a short form
	$(PY) benchmarks/decoding.py --output $(if $(ARGS),build/decoding.json $(ARGS),benchmarks/results/decoding.json)

reference-models: $(STAMP)  ## train the reference models and push them: OWNER=name WITH=machine.yaml ARGS=NAME
	HF_HUB_OFFLINE=0 $(PY) examples/train_reference_models.py --owner $(OWNER) $(if $(WITH),--with $(WITH)) $(ARGS)

metric-modules: $(STAMP)  ## write the folders of the metrics for the Hub: OWNER=name ARGS=--push
	HF_HUB_OFFLINE=0 $(PY) -m release.metric_modules build/metric_modules --owner $(OWNER) $(ARGS)

clean:  ## remove build products
	rm -rf build dist demo *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
