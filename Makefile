# The verbs of this repository. `make` alone lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo

# What tests of the kernel readers call, and the Debian package that has it.
TOOLS := cc:gcc ip:iproute2 ss:iproute2 nft:nftables iptables:iptables ps:procps \
         setpriv:util-linux unshare:util-linux capsh:libcap2-bin
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)

.PHONY: help check build test lint docs fmt tools

help: ## List the verbs
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

check: ## Build it and look at this machine
	$(CARGO) run --release --locked -- check

build: ## Build the release binary
	$(CARGO) build --release --locked

# The runner keeps tests off this machine's own network. cargo's own lines come last.
test: tools lint ## Install what tests need, lint, and run every test; kernel tests need root
	$(CARGO) test --locked --config 'target."cfg(unix)".runner = "tests/in-private-namespaces"'

lint: ## Check formatting, lints and documentation
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps --document-private-items --locked

docs: ## Make the generated files anew
	UPDATE=1 $(CARGO) test --locked --test anywhere generated

fmt: ## Format the code
	$(CARGO) fmt

tools:
	@missing=; \
	for tool in $(TOOLS); do \
	    PATH="$$PATH:/usr/sbin:/sbin" command -v "$${tool%%:*}" > /dev/null || missing+=" $${tool##*:}"; \
	done; \
	if [ -n "$$missing" ]; then \
	    $(SUDO) apt-get update --quiet; \
	    $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends $$missing; \
	fi
	@$(CARGO) fmt --version > /dev/null 2>&1 || rustup component add rustfmt
	@$(CARGO) clippy --version > /dev/null 2>&1 || rustup component add clippy
