# The image of Portreeve: one static binary and its licence.
#
#   docker buildx build --platform linux/amd64,linux/arm64 .   compiles it, for either architecture
#   make image                                                 takes what this machine compiled; needs no registry
#   make release VERSION=...                                   takes what it compiled for both architectures
#
# The tag of the base moves with its patches, which is right for a build of one's own. A release uses no base.
ARG BASE=docker.io/library/rust:1.95-alpine
ARG BINARY=build

# Runs on the builder's own architecture; clang and lld make code for the other one, and clang the bind hook's program.
# hadolint ignore=DL3006
FROM --platform=$BUILDPLATFORM ${BASE} AS build
ARG TARGETARCH=amd64
# cargo-auditable writes the list of dependencies into the binary, where scanners find it.
# hadolint ignore=DL3018
RUN apk add --no-cache clang linux-headers lld && cargo install cargo-auditable --version 0.7.7 --locked
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY .cargo ./.cargo
COPY deploy/names ./deploy/names
COPY deploy/policies ./deploy/policies
COPY crates ./crates
COPY src ./src
RUN case "$TARGETARCH" in \
        amd64) cpu=x86_64 CPU=X86_64 ;; \
        arm64) cpu=aarch64 CPU=AARCH64 ;; \
        *) echo "no target for $TARGETARCH" >&2; exit 1 ;; \
    esac \
    && target="$cpu-unknown-linux-musl" \
    && if [ "$cpu" != "$(uname -m)" ]; then \
        rustup target add "$target"; \
        export "CC_${cpu}_unknown_linux_musl=clang"; \
        export "CARGO_TARGET_${CPU}_UNKNOWN_LINUX_MUSL_RUSTFLAGS=-Clinker=clang -Clink-self-contained=yes -Clink-arg=--target=$cpu-linux-musl -Clink-arg=-fuse-ld=lld"; \
    fi \
    && cargo auditable build --release --locked --target "$target" --features bind-hook \
    && mv "target/$target/release/portreeve" /portreeve

FROM scratch AS prebuilt
COPY portreeve /portreeve

# hadolint ignore=DL3006
FROM ${BINARY} AS binary

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG REPOSITORY=unknown
LABEL org.opencontainers.image.title="portreeve" \
      org.opencontainers.image.description="Finds, explains and predicts port conflicts on Kubernetes nodes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${REPOSITORY}" \
      org.opencontainers.image.url="${REPOSITORY}" \
      org.opencontainers.image.documentation="${REPOSITORY}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# A release has the licences of what is compiled into the binary, too.
COPY LICENSE NOTICE* /
COPY --from=binary /portreeve /portreeve
USER 65534:65534
ENTRYPOINT ["/portreeve"]
