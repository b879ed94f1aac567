# The verbs of this repository. `make` alone lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo

# What tests of the kernel readers call, and the Debian package that has it.
TOOLS := cc:gcc ip:iproute2 ss:iproute2 nft:nftables iptables:iptables ps:procps \
         setpriv:util-linux unshare:util-linux capsh:libcap2-bin openssl:openssl

# Kubernetes itself, built once per machine and version; a program in $KUBEBUILDER_ASSETS or on the PATH comes first.
KUBERNETES := $(shell sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\).*|\1|p' tests/lab/go.mod)
LAB := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/portreeve/lab/$(KUBERNETES)
LAB_PROGRAMS := etcd:go.etcd.io/etcd/server/v3 \
                kube-apiserver:k8s.io/kubernetes/cmd/kube-apiserver \
                kube-proxy:k8s.io/kubernetes/cmd/kube-proxy
VERSION := k8s.io/component-base/version
LAB_FLAGS := -s -w -X $(VERSION).gitVersion=$(KUBERNETES) \
             -X $(VERSION).gitMajor=1 -X $(VERSION).gitMinor=$(word 2,$(subst ., ,$(KUBERNETES)))

SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)

.PHONY: help check build test lab lint docs fmt tools

help: ## List the verbs
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

check: ## Build it and look at this machine
	$(CARGO) run --release --locked -- check

build: ## Build the release binary
	$(CARGO) build --release --locked

# The runner keeps tests off this machine's own network. cargo's own lines come last.
test: tools lab lint ## Install what tests need, lint, and run every test; kernel tests need root
	PORTREEVE_LAB='$(LAB)' $(CARGO) test --locked --config 'target."cfg(unix)".runner = "tests/in-private-namespaces"'

lab: ## Build the parts of Kubernetes that tests run; minutes the first time, then nothing
	@mkdir -p '$(LAB)'; \
	for program in $(LAB_PROGRAMS); do \
	    name="$${program%%:*}"; \
	    if [ -x "$${KUBEBUILDER_ASSETS:+$$KUBEBUILDER_ASSETS/$$name}" ] || command -v "$$name" > /dev/null || [ -x "$(LAB)/$$name" ]; then \
	        continue; \
	    fi; \
	    command -v go > /dev/null || { echo >&2 "building $$name needs Go; or put it on the PATH"; exit 1; }; \
	    echo "building $$name $(KUBERNETES)"; \
	    CGO_ENABLED=0 go build -C tests/lab -trimpath -ldflags '$(LAB_FLAGS)' -o "$(LAB)/.$$name.$$$$" "$${program#*:}"; \
	    mv "$(LAB)/.$$name.$$$$" "$(LAB)/$$name"; \
	done

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
