# The verbs (targets) of this repository. `make` alone lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# The folder in which tools/install keeps its results, also when tests run as root.
export XDG_CACHE_HOME ?= $(or $(HOME),$(error set HOME or XDG_CACHE_HOME))/.cache
# The PATH also has the programs that tools/install made from wheels and crates. Programs that are already on the PATH come first.
export PATH := $(PATH):$(shell XDG_CACHE_HOME='$(XDG_CACHE_HOME)' tools/install --path)
# CDPATH would change the result of cd. A git hook sets variables with the path of its repository.
unexport CDPATH $(shell git rev-parse --local-env-vars 2> /dev/null)

MUSL := $(shell uname -m)-unknown-linux-musl
# The kubectl plugin runs on macOS. A check of its types needs neither Apple's C compiler nor its linker.
MACOS := aarch64-apple-darwin
RELEASE := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
IMAGE := target/portreeve-$(RELEASE).tar
# The runner keeps tests off this machine's own network.
PRIVATE := --config 'target."cfg(unix)".runner = "tests/in-private-namespaces"'
# With UPDATE or a similar variable, a test writes its expected output instead of comparing it. So these variables are removed.
NEXTEST := env -u UPDATE -u INSTA_UPDATE -u INSTA_FORCE_PASS -u NEXTEST_PROFILE $(CARGO) nextest run --locked $(PRIVATE)

.PHONY: help check build test lab nightly lint advisories fmt docs chart mutants fuzz bench pictures image release publish root shipped site static words comments macos

help: ## List the verbs
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

check: ## Build it and look at this machine
	$(CARGO) run --release --locked -- check

build: ## Build the release binary
	$(CARGO) build --release --locked

test: root ## Install what is missing, lint, and run every short test that needs no cluster; real sockets need root
	@$(MAKE) --no-print-directory lint
	@tools/timed 'build tests' $(NEXTEST) --workspace --no-run
	@tools/timed 'tests' $(NEXTEST) --workspace

lab: root ## Run the tests that need the real parts, and long ones; check the words, and the types for macOS; needs root
	@$(MAKE) --no-print-directory words
	@$(MAKE) --no-print-directory macos
	@tools/timed 'tools of lab' tools/install lab helm
	@tools/timed 'build lab' $(NEXTEST) --profile lab --workspace --no-run
	@tools/timed 'lab' $(NEXTEST) --profile lab --workspace

macos: ## Check the types of the plugin for macOS
	@tools/timed 'tools of macos' tools/install macos
	@CC_aarch64_apple_darwin=true AR_aarch64_apple_darwin=true SDKROOT=/ tools/timed macos $(CARGO) clippy --locked --target $(MACOS) -- -D warnings

ALERTS := dashboards/alerts.yaml dashboards/alerts-without-agent.yaml
# The rules are in docs/style. Vale skips the help texts in docs/cli.md, because they are code blocks. Vale reads neither the texts of JSON
# files nor the comments and texts of YAML files, so this target copies these texts into Markdown files. An alert has several texts for
# several labels: `else` begins another sentence.
words: ## Check that documents, help, recorded output, the chart, dashboards and alerts keep to plain words
	@tools/timed 'tools of words' tools/install words
	@rm -rf target/words
	@mkdir -p target/words
	@awk '/^```/ { inside = !inside; next } inside' docs/cli.md > target/words/help.txt
	@sed 's/^ *# \{0,1\}//; t; s/.*//' deploy/chart/values.yaml $(ALERTS) > target/words/comments.md
	@sed -n 's/^ *"\(description\|title\)": "\(.*\)",\{0,1\}$$/\2\n/p' dashboards/*.json > target/words/dashboards.md
	@perl -0777 -n -e 's/\{\{-? else.*?\}\}/. Or /gs; s/\{\{.*?\}\}//gs;' \
	    -e 'print $$1 =~ s/\s+/ /gr, "\n\n" while /^ +(?:summary|description):(?: >-)?(.*?\n)(?= +(?:description|runbook_url): )/gms' \
	    $(ALERTS) > target/words/alerts.md
	@tools/timed words "$$(tools/install --find vale)" --no-wrap *.md examples fuzz/README.md docs skills target/words \
	    deploy/chart/README.md deploy/chart/templates/NOTES.txt \
	    $$(find crates src tests -name '*_table.snap' -o -name '*_wide.snap' -o -name '*commands.snap')

comments: ## Print the comments of Rust that do not keep to plain words
	@tools/install words
	@"$$(tools/install --find vale)" --no-wrap --no-exit --output=line src crates tests

# Only this target, `make release` and the nightly shard `release` compile mdBook. This target checks the links within the site. It does not
# check links to other sites.
site: ## Make the site of the documents below target/site, and check its links
	@tools/install site
	@tools/timed site mdbook build
	@tools/timed 'links of the site' lychee --offline --no-progress --include-fragments --root-dir '$(CURDIR)/target/site' 'target/site/**/*.html'

nightly: root ## Run what takes hours, in shards; those that passed at this commit are not run again; SHARD=cilium for one; needs root
	@tests/nightly $(SHARD)

# This check runs before all builds, and needs few tools. So a user without root gets the error message at once.
root:
	@tests/in-private-namespaces --check-root
	@tools/timed 'tools of test' tools/install test
	@tests/in-private-namespaces --check

lint: ## Check formatting, lints, documentation and dependencies
	@tools/timed 'tools of lint' tools/install lint
	@tools/timed fmt $(CARGO) fmt --all --check
	@tools/timed 'fmt fuzz' $(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	@tools/timed clippy $(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@tools/timed 'clippy fuzz' $(CARGO) clippy --locked --manifest-path fuzz/Cargo.toml --all-targets \
	    --target-dir "$${CARGO_TARGET_DIR:-target}" -- -D warnings
	@RUSTDOCFLAGS='-D warnings' tools/timed doc $(CARGO) doc --workspace --no-deps --document-private-items --locked
	@tools/timed deny cargo-deny --locked --workspace check -D warnings bans licenses sources
	@tools/timed shear cargo-shear
	@tools/timed rumdl rumdl check --quiet .
	@tools/timed links lychee --offline --no-progress --include-fragments '*.md' 'docs/**/*.md' 'deploy/**/*.md' examples/README.md fuzz/README.md

# New advisories appear while the code stays the same. So each nightly run and each release run this target. Only this target and `publish`
# need GitHub.
advisories: ## Look for dependencies with known vulnerabilities, in the RustSec database of GitHub
	@tools/install lint
	cargo-deny --locked --workspace check advisories

fmt: ## Format the code
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml

docs: ## Make the generated files anew
	@tools/install test
	UPDATE=1 $(CARGO) nextest run --locked --bin portreeve --test anywhere -E 'test(documents::) + test(generated::) + test(verdicts::matrix::) + test(the_recorded_world_is_the_healthy_one)'

chart: ## Make the table in the chart's README and deploy/install.yaml anew
	@tools/install test helm
	UPDATE=1 $(CARGO) nextest run --locked --profile lab --test delivery -E 'test(generated::)'

SINCE ?= main
mutants: ## Change every condition that differs from SINCE, and see that a test notices; CRATE=portreeve-rules SHARD=1/8 for a whole crate
	@$(if $(CRATE),,$(if $(SHARD),$(error SHARD is of a whole crate: say CRATE=portreeve-rules too)))
	@tools/install test mutants
ifdef CRATE
	@crates="$$($(CARGO) metadata --no-deps --format-version 1 | jq -r '.packages[].name')"; \
	grep -qxF -e '$(CRATE)' <<< "$$crates" || { echo >&2 'no crate $(CRATE): type CRATE= with one of' $$crates; exit 1; }
	$(CARGO) mutants --no-shuffle -p '$(CRATE)' $(if $(SHARD),--shard '$(SHARD)')
else
	@new="$$(git ls-files --others --exclude-standard -- crates)"; \
	[ -z "$$new" ] || { echo >&2 "mutants are made of what git tracks; type: git add --intent-to-add" $$new; exit 1; }
	@mkdir -p target
	@git diff '$(SINCE)' -- crates > target/mutants.diff
	@[ -s target/mutants.diff ] || { echo 'nothing below crates differs from $(SINCE)'; exit; }; \
	$(CARGO) mutants --in-diff target/mutants.diff
endif

# Two fuzz targets run at a time. The nightly run gives each target 90 seconds. `make fuzz SECONDS_EACH=3600 TARGETS="snapshot flagz"` runs
# only these two targets, for an hour each.
SECONDS_EACH ?= 180
fuzz: ## Feed every parser with arbitrary bytes, and end with the first promise that is broken; SEED=1 for the same again
	@tools/install fuzz
	SEED='$(SEED)' fuzz/run '$(SECONDS_EACH)' $(TARGETS)

# `make bench` measures the binary of the image, because nodes run this binary. The benchmark itself has the profile dev. A profile with the
# image's settings would optimize the benchmark for size, too, and such a build takes minutes.
bench: root ## Measure what it costs, beside ss, lsof and others; UPDATE=1 keeps it; FAMILIES=pods; needs root
	@$(MAKE) --no-print-directory image
	tools/install lab helm bench hook
	PORTREEVE_IMAGE='$(IMAGE)' $(CARGO) bench --locked --profile dev --features bind-hook --bench cost $(PRIVATE) -- target/$(MUSL)/release/portreeve $(FAMILIES)

# The components of Grafana are large, and no release contains them.
pictures: root ## Draw the documents' pictures anew, of what a Prometheus of the lab answered; needs root
	@tools/install image lab helm pictures
	$(NEXTEST) --profile nightly --test lab -E 'test(/^pictures::/)'
	cd tests/pictures && npm ci
	node tests/pictures/draw.mjs target/tmp/pictures dashboards docs/pictures
	pngquant --force --ext .png --strip 32 docs/pictures/*.png

# The static binary for images in nightly tests. The caller has installed the tools of the set `image`.
static:
	$(CARGO) build --locked --target $(MUSL) --features '$(FEATURES)' --bin portreeve

image: shipped ## Build the image of a static binary, for ctr, docker load and skopeo; needs no registry
	@VERSION='$(RELEASE)' tools/image docker-archive:$(IMAGE):portreeve:$(RELEASE) "$$(case "$$(uname -m)" in aarch64) echo arm64 ;; *) echo amd64 ;; esac)=target/$(MUSL)/release/portreeve"
	@echo $(IMAGE)

release: ## Make a release below dist, and push nothing: make release VERSION=1.2.3 COSIGN_KEY=FILE MINISIGN_KEY=FILE
	@tools/install image shipped hook helm release site
	@env --unset={COSIGN,MINISIGN}_{PRIVATE_KEY,PASSWORD} --unset=ACTIONS_ID_TOKEN_REQUEST_{URL,TOKEN} --unset=MAKEFLAGS $(MAKE) --no-print-directory advisories
	@COSIGN_KEY='$(COSIGN_KEY)' MINISIGN_KEY='$(MINISIGN_KEY)' tools/release '$(VERSION)'

publish: ## Push what is below dist, and make nothing: make publish COSIGN_KEY=FILE
	@tools/install helm release publish
	@COSIGN_KEY='$(COSIGN_KEY)' tools/publish

# The binary that runs on nodes. Like the binary of a release, it has the bind hook.
shipped: FEATURES ?= bind-hook
shipped:
	tools/install image shipped $(if $(findstring bind-hook,$(FEATURES)),hook)
	tools/shipped build --release --locked --target $(MUSL) --features '$(FEATURES)'
