# The verbs of this repository. `make` alone lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo

# What tests call, and the Debian package that has it.
TOOLS := cc:gcc ip:iproute2 ss:iproute2 nft:nftables iptables:iptables ps:procps \
         setpriv:util-linux unshare:util-linux capsh:libcap2-bin openssl:openssl perl:perl-base \
         buildah:buildah containerd:containerd runc:runc /usr/lib/cni/bridge:containernetworking-plugins \
         conntrack:conntrack curl:curl jq:jq prometheus:prometheus promtool:prometheus nsenter:util-linux strip:binutils \
         prometheus-alertmanager:prometheus-alertmanager musl-gcc:musl-tools \
         qemu-system-x86_64:qemu-system-x86 busybox:busybox-static modprobe:kmod cpio:cpio ipset:ipset \
         faketime:faketime prlimit:util-linux script:bsdutils

# What a benchmark compares with.
CONTENDERS := ss:iproute2 netstat:net-tools lsof:lsof nsenter:util-linux curl:curl \
              prometheus-node-exporter:prometheus-node-exporter

# What `make lint` calls beside what rustup has, built once per machine and version. They read a few files: optimizing them
# takes longer than they run.
CRATES := cargo-deny@0.20.2 cargo-machete@0.9.2
QUICKLY := CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

# Kubernetes itself, and helm, built once per machine and version; a program in $KUBEBUILDER_ASSETS or on the PATH comes
# first. Each is a name, its package, the folder of the go.mod that has it, and where it is kept.
pinned = $(shell sed -n 's|^\t$(1) \(v[0-9.]*\).*|\1|p' $(2)/go.mod)
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/portreeve
KUBERNETES := $(call pinned,k8s.io/kubernetes,tests/lab)
LAB := $(CACHE)/lab/$(KUBERNETES)
HELM := $(CACHE)/helm/$(call pinned,helm.sh/helm/v4,tests/lab/helm)
KUBE := k8s.io/kubernetes/cmd
LAB_PROGRAMS := etcd=go.etcd.io/etcd/server/v3:tests/lab:$(LAB) \
                $(foreach name,kube-apiserver kube-proxy kubectl kubelet kube-controller-manager kube-scheduler, \
                    $(name)=$(KUBE)/$(name):tests/lab:$(LAB)) \
                kube-proxy-1.23.6=$(KUBE)/kube-proxy:tests/lab/kube-proxy-1.23:$(LAB) \
                kube-proxy-1.37.2=$(KUBE)/kube-proxy:tests/lab/kube-proxy-1.37:$(LAB) \
                portmap-1.9.0=github.com/containernetworking/plugins/plugins/meta/portmap:tests/lab/cni-1.9:$(LAB) \
                helm=helm.sh/helm/v4/cmd/helm:tests/lab/helm:$(HELM)
VERSION := k8s.io/component-base/version

# Cilium, and its minor before: its agent, its CNI plugin, and beside them what they compile and install.
CILIUM_MODULE := tests/lab/cilium-1.20
CILIUM := $(CACHE)/cilium/$(call pinned,github.com/cilium/cilium,$(CILIUM_MODULE))
CILIUM_PROGRAMS := cilium-agent=github.com/cilium/cilium/daemon:$(CILIUM_MODULE):$(CILIUM) \
                   cilium-cni=github.com/cilium/cilium/plugins/cilium-cni:$(CILIUM_MODULE):$(CILIUM)
CILIUM_BEFORE_MODULE := tests/lab/cilium-1.19
CILIUM_BEFORE := $(CACHE)/cilium/$(call pinned,github.com/cilium/cilium,$(CILIUM_BEFORE_MODULE))
CILIUM_BEFORE_PROGRAMS := cilium-agent-before=github.com/cilium/cilium/daemon:$(CILIUM_BEFORE_MODULE):$(CILIUM_BEFORE) \
                          cilium-cni-before=github.com/cilium/cilium/plugins/cilium-cni:$(CILIUM_BEFORE_MODULE):$(CILIUM_BEFORE)
CILIUM_TOOLS := clang-19:clang-19 llc-19:llvm-19 ethtool:ethtool
GUEST := $(CACHE)/guest
CRATES_AT = $(CACHE)/$(subst @,/,$(filter $(1)@%,$(CRATES)))
DENY = $(call CRATES_AT,cargo-deny)/bin/cargo-deny
MACHETE = $(call CRATES_AT,cargo-machete)/bin/cargo-machete

MUSL := $(shell uname -m)-unknown-linux-musl
RELEASE := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
IMAGE := target/portreeve-$(RELEASE).tar

LABELLED := PORTREEVE_LAB='$(LAB)' PORTREEVE_CILIUM='$(CILIUM)' PORTREEVE_CILIUM_BEFORE='$(CILIUM_BEFORE)' PORTREEVE_GUEST='$(GUEST)' PORTREEVE_HELM='$(HELM)'
PRIVATE := --config 'target."cfg(unix)".runner = "tests/in-private-namespaces"'

SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)

.PHONY: help check build test verdicts pictures mutants fuzz hostile threads bench lab cilium agent guest static lint advisories docs chart image release krew shipped fmt tools crates

help: ## List the verbs
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

check: ## Build it and look at this machine
	$(CARGO) run --release --locked -- check

build: ## Build the release binary
	$(CARGO) build --release --locked

# The runner keeps tests off this machine's own network. cargo's own lines come last. Tests in a guest, whose every
# instruction is emulated, and those of Cilium are a verb of their own, `make verdicts`; CI runs both.
test: tools lab static lint ## Install what tests need, lint, and run every test; kernel tests need root
	$(LABELLED) $(CARGO) test --locked $(PRIVATE) -- --skip ipvs:: --skip behind_cilium:: --skip pictures::

# What runs on nodes is measured: the binary of the image. A bench profile would make the benchmark itself small too, which
# takes minutes.
bench: tools lab image ## Measure what it costs, beside ss, lsof and others; UPDATE=1 keeps it; FAMILIES=pods; needs root
	@$(MAKE) --no-print-directory tools TOOLS='$(CONTENDERS)'
	PORTREEVE_IMAGE='$(IMAGE)' $(LABELLED) $(CARGO) bench --locked --profile dev --bench cost $(PRIVATE) -- target/$(MUSL)/release/portreeve $(FAMILIES)

COUNT_CELLS := awk '{ cells += $$2; wrong += $$3; print } END { print "all", cells, wrong }' target/tmp/verdicts/* | \
    awk 'BEGIN { printf "%-24s %8s %8s %8s\n", "configuration", "cells", "agree", "differ" } { printf "%-24s %8d %8d %8d\n", $$1, $$2, $$2 - $$3, $$3 }'

# Behind Cilium those settings that answer differently: `make cilium` asks in all.
verdicts: tools lab guest agent ## Ask packets about every verdict, behind Cilium and in a guest with ipvs too, and count the cells; needs root
	rm -rf target/tmp/verdicts
	$(LABELLED) $(CARGO) test --locked --test lab $(PRIVATE) -- verdicts:: ipvs:: behind_cilium::often:: behind_cilium::apart::by_default behind_cilium::live:: behind_cilium::host_port:: behind_cilium::masquerade::
	@$(COUNT_CELLS)

cilium: tools lab agent ## Ask packets about every verdict behind Cilium alone, in all its settings, and count the cells; needs root
	@$(MAKE) --no-print-directory agent CILIUM_MODULE='$(CILIUM_BEFORE_MODULE)' CILIUM='$(CILIUM_BEFORE)' \
	    CILIUM_PROGRAMS='$(CILIUM_BEFORE_PROGRAMS)'
	rm -rf target/tmp/verdicts
	$(LABELLED) $(CARGO) test --locked --test lab $(PRIVATE) -- behind_cilium::seldom:: behind_cilium::apart:: behind_cilium::before::
	@$(COUNT_CELLS)

# What Grafana's components are made of is heavy, and nothing that is shipped.
pictures: lab ## Draw the documents' pictures anew, of what a Prometheus of the lab answered; needs root
	@$(MAKE) --no-print-directory tools TOOLS='$(TOOLS) chromium:chromium npm:npm pngquant:pngquant'
	$(LABELLED) $(CARGO) test --locked --test lab $(PRIVATE) -- pictures::
	cd tests/pictures && npm ci
	node tests/pictures/draw.mjs target/tmp/pictures dashboards docs/pictures
	pngquant --force --ext .png --strip 64 docs/pictures/*.png

# A package of its own; what it is made of stays out of the lock file of the program.
mutants: ## Invert every condition of every rule and data plane, and see that a test notices; FILES="dataplane/cilium.rs" for some; needs root
	CARGO_TARGET_DIR=target/mutants/tool $(CARGO) test --locked --quiet --manifest-path tests/mutants/Cargo.toml
	FILES='$(FILES)' CARGO_TARGET_DIR=target/mutants/tool $(CARGO) run --locked --quiet --manifest-path tests/mutants/Cargo.toml

# Two targets at a time. CI runs all for a few seconds; `SECONDS_EACH=3600` is for a night, `TARGETS="snapshot flagz"` for some.
SECONDS_EACH ?= 600
fuzz: ## Feed every parser with arbitrary bytes, and end with the first promise that is broken; SEED=1 for the same again
	SEED='$(SEED)' fuzz/run '$(SECONDS_EACH)' $(TARGETS)

hostile: ## Feed the program with inputs that are known to be hostile, and count them and the fuzz targets
	@$(CARGO) test --quiet --locked --test anywhere $(PRIVATE) -- hostile::every --nocapture | sed -n 's/^\([0-9]* hostile inputs\)$$/\1/p'
	@echo "$$(grep -c '^[a-z]' fuzz/targets) fuzz targets"

threads: ## Test what is said of real threads, and count those that are served
	@$(CARGO) test --quiet --locked --test anywhere $(PRIVATE) -- threads:: --nocapture | sed -n 's/^[.]*\([0-9]* of [0-9]* threads served\)$$/\1/p'

lab: ## Build the programs that tests run, Kubernetes and helm; minutes the first time, then nothing
	@for program in $(LAB_PROGRAMS); do \
	    IFS==: read -r name package module folder <<< "$$program"; \
	    if [ -x "$${KUBEBUILDER_ASSETS:+$$KUBEBUILDER_ASSETS/$$name}" ] || command -v "$$name" > /dev/null || [ -x "$$folder/$$name" ]; then \
	        continue; \
	    fi; \
	    command -v go > /dev/null || { echo >&2 "building $$name needs Go; or put it on the PATH"; exit 1; }; \
	    echo "building $$folder/$$name"; \
	    mkdir -p "$$folder"; \
	    version="$$(sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\).*|\1|p' "$$module/go.mod")"; \
	    IFS=. read -r major minor _ <<< "$${version#v}"; \
	    stamp="-X $(VERSION).gitVersion=$$version -X $(VERSION).gitMajor=$$major -X $(VERSION).gitMinor=$$minor"; \
	    CGO_ENABLED=0 go build -C "$$module" -trimpath -ldflags "-s -w $${version:+$$stamp}" -o "$$folder/.$$name.$$$$" "$$package"; \
	    mv "$$folder/.$$name.$$$$" "$$folder/$$name"; \
	done

# Minutes the first time, then nothing. The agent compiles its datapath in each configuration.
agent:
	@$(MAKE) --no-print-directory tools TOOLS='$(CILIUM_TOOLS)'
	@$(MAKE) --no-print-directory lab LAB_PROGRAMS='$(CILIUM_PROGRAMS)'
	@if [ ! -d '$(CILIUM)/crds' ]; then \
	    sources="$$(go list -C '$(CILIUM_MODULE)' -m -f '{{.Dir}}' github.com/cilium/cilium)"; \
	    rm -rf '$(CILIUM)/bpf' '$(CILIUM)/chart' '$(CILIUM)/.crds'; \
	    cp -r --no-preserve=mode "$$sources/bpf" '$(CILIUM)/bpf'; \
	    cp -r --no-preserve=mode "$$sources/install/kubernetes/cilium" '$(CILIUM)/chart'; \
	    cp -r --no-preserve=mode "$$sources/pkg/k8s/apis/cilium.io/client/crds" '$(CILIUM)/.crds'; \
	    mv '$(CILIUM)/.crds' '$(CILIUM)/crds'; \
	fi

static: ## Build the static binary that tests make an image of
	rustup target add $(MUSL)
	$(CARGO) build --locked --target $(MUSL) --bin portreeve

guest: ## Unpack a kernel for guests of tests, which has what this machine's may lack, such as ipvs
	@tests/lab/guest/fetch '$(GUEST)'

lint: crates ## Check formatting, lints, documentation and dependencies
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps --document-private-items --locked
	$(DENY) --locked check -D warnings bans licenses sources
	$(MACHETE) --skip-target-dir

# Advisories change while the code does not: a release runs this, and no other verb needs GitHub.
advisories: crates ## Look for dependencies with known vulnerabilities, in the RustSec database of GitHub
	$(DENY) --locked check advisories

docs: ## Make the generated files anew
	UPDATE=1 $(CARGO) test --locked --test anywhere -- generated:: verdicts::matrix::

chart: lab ## Make the table in the chart's README and deploy/install.yaml anew
	UPDATE=1 PORTREEVE_HELM='$(HELM)' $(CARGO) test --locked --test delivery generated

image: shipped ## Build the image of a static binary, for ctr, docker load and skopeo; needs no registry
	@$(MAKE) --no-print-directory tools TOOLS='buildah:buildah'
	@context="$$(mktemp -d)"; trap 'rm -rf "$$context"' EXIT; \
	cp Dockerfile .dockerignore LICENSE target/$(MUSL)/release/portreeve "$$context"; \
	buildah="buildah --storage-driver=vfs --root=$$context/storage --runroot=$$context/run"; \
	$$buildah bud --isolation chroot --build-arg BINARY=prebuilt \
	    --build-arg REVISION="$$(git rev-parse HEAD 2> /dev/null || echo unknown)" --tag portreeve "$$context"; \
	rm -f $(IMAGE); \
	$$buildah push portreeve docker-archive:$(IMAGE):portreeve:$(RELEASE); \
	echo $(IMAGE)

# `make image` compiles with this machine's toolchain and has no base. This one has, and a tag can be moved: a release names
# the digest.
release: ## Build and push the image of a release: make release BASE=rust:...@sha256:... NAME=registry.example/portreeve
	@[[ '$(BASE)' =~ @sha256:[0-9a-f]{64}$$ ]] || { echo >&2 'BASE must name its digest: rust:...@sha256:...'; exit 1; }
	@[ -n '$(NAME)' ] || { echo >&2 'NAME must say where to push: registry.example/portreeve'; exit 1; }
	@[ -z "$$(git status --porcelain)" ] || { echo >&2 'commit what has changed first'; exit 1; }
	@$(MAKE) --no-print-directory advisories
	docker buildx build --platform linux/amd64,linux/arm64 --build-arg BASE='$(BASE)' \
	    --build-arg REVISION="$$(git rev-parse HEAD)" --tag '$(NAME):$(RELEASE)' --push .

# krew knows Go's names of architectures.
krew: shipped ## Pack the kubectl plugin for krew, and print its manifest: make krew URL=https://...
	folder="$$(mktemp -d)"; trap 'rm -rf "$$folder"' EXIT; \
	case "$$(uname -m)" in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) exit 64 ;; esac; \
	archive="target/kubectl-portreeve-$(RELEASE)-linux-$$arch.tar.gz"; \
	cp target/$(MUSL)/release/portreeve "$$folder/kubectl-portreeve"; \
	cp LICENSE "$$folder"; \
	tar --owner=0 --group=0 -czf "$$archive" -C "$$folder" kubectl-portreeve LICENSE; \
	deploy/krew/manifest '$(URL)' "$$archive"

shipped:
	@$(MAKE) --no-print-directory tools TOOLS='musl-gcc:musl-tools'
	rustup target add $(MUSL)
	$(CARGO) build --release --locked --target $(MUSL)

# Each version in a folder of its own, so that worktrees of different age do not take turns. Built elsewhere than in `target`,
# of which the cache is not of these.
crates:
	@for crate in $(CRATES); do \
	    folder="$(CACHE)/$${crate/@//}"; \
	    if [ ! -x "$$folder/bin/$${crate%@*}" ]; then \
	        env --unset=CARGO_TARGET_DIR $(QUICKLY) $(CARGO) install --quiet --locked --root "$$folder" "$$crate"; \
	    fi; \
	done

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
