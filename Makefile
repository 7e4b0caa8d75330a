# What a person or CI types here. Each target works in a fresh clone with make, sh and Python 3.11 or newer: no Java, no
# compiler, no activated environment. Packages go to .venv by requirements/install.sh, which does nothing when .venv
# already holds what the lock says. Plain POSIX make and sh, so that BSD and macOS make run it as well.
.POSIX:

BIN = .venv/bin
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links

.PHONY: help demo test check docs pictures format bench soak lock upgrade clean compile runtime-environment dev-environment

help: ## list these targets
	@while IFS= read -r line; do case $$line in [a-z]*:*'## '*) \
		printf '%-11s %s\n' "$${line%%:*}" "$${line#*## }";; esac; done < Makefile

demo: runtime-environment ## install what is needed, import and compact git's history, and compare it with git
	@$(BIN)/python tools/demo.py

# The tier is decided here and nowhere else: everything with CI=true, otherwise all but the tests marked slow.
# pytest comes last and nothing is printed after it: CI reads its closing line.
# More processes than cores, as tests wait; but each collects all tests and has servers of its own, 20 s of CPU in CI. A
# file goes to one process (tests/distribution.py). ARGS="-n 0" for one process, with a debugger.
test: compile check ## check, then the tests: the fast tier, or everything with CI=true (ARGS=… for pytest)
	@case "$${CI:-}" in \
		true) tier='not soak'; slowest=--durations=40; \
			$(BIN)/python -m tests.servers.versitygw && $(BIN)/python -m tests.servers.light_java || exit ;; \
		*) tier='not slow and not soak'; slowest= ;; \
	esac; exec $(BIN)/python -m pytest -m "$$tier" -n 3 --dist loadfile $$slowest $(ARGS)

# Types take as long as all else together, so they are checked beside the rest.
check: dev-environment ## lint, format, types, the rules between packages and for tests, and the English
	@$(BIN)/mypy api benchmarks compactor migrations storage tools & types=$$!; trap 'kill $$types' INT TERM; \
		$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/lint-imports && $(BIN)/python tools/prose.py && \
		$(BIN)/python tools/private_members.py && $(BIN)/python tools/commit_subjects.py; status=$$?; \
		wait $$types && exit $$status

docs: dev-environment ## make the documentation's site, in .cache/site, without a network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir .cache/site
	@echo "open .cache/site/index.html; its search needs a server: $(BIN)/python -m http.server --directory .cache/site"

pictures: dev-environment ## make the dashboard's images in docs/images from seeded data (needs Chromium)
	@$(BIN)/python tools/pictures.py $(ARGS)

format: dev-environment ## put the code into the one format, and fix what ruff can fix
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: dev-environment ## run the benchmarks
	@$(BIN)/python -m benchmarks $(ARGS)

# LIVES, DURATION (seconds of the histories) and SEED bound it. Each part prints a line of figures for docs/faults.md.
soak: dev-environment ## simulated lives, random histories, services under faults: two hours (LIVES=… DURATION=… SEED=…)
	@$(BIN)/python -m tests.servers.versitygw
	@seed="$${SEED:-$$(date +%Y%m%d)}"; seconds="$${DURATION:-3600}"; \
		$(BIN)/python -m tests.faults.simulate --seed "$$seed" --seeds "$${LIVES:-1000}" && \
		$(BIN)/python -m tests.faults.random_histories --seed "$$seed" --seconds "$$seconds" .cache/histories-$$$$ && \
		COMPACTOR_SOAK=true COMPACTOR_SOAK_SECONDS=$$((seconds / 6)) $(BIN)/python -m pytest -n 0 -q -s \
			-m 'soak or budgeted'

# In this order: each lock takes the pins of the one before, so that all three can stand in one environment.
lock: dev-environment ## write requirements/*.lock again from pyproject.toml, keeping the pins that still fit
	@$(LOCK) --group build --output-file requirements/build.lock
	@$(LOCK) pyproject.toml --extra java --extra postgres --group build --constraints requirements/build.lock \
		--output-file requirements/runtime.lock
	@$(LOCK) pyproject.toml --all-extras --group build --group lock --constraints requirements/runtime.lock \
		--output-file requirements/dev.lock

upgrade: dev-environment ## the same, with every pin at its newest version
	@rm -f requirements/build.lock requirements/runtime.lock requirements/dev.lock
	@$(MAKE) lock

clean: ## remove the environment and every cache; topics and ledgers in .compactor stay
	rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache ./*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

runtime-environment: ## install what is needed to run it
	@sh requirements/install.sh runtime

# In a fresh clone, beside the checks, as .ci/run does: one process compiles what all processes of the tests import.
compile: dev-environment
	@test "$${CI:-}" = true || test -d tests/__pycache__ || { \
		$(BIN)/python -m pytest --collect-only -qq </dev/null >/dev/null 2>&1 & }

dev-environment:
	@sh requirements/install.sh dev
