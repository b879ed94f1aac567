# The image of Portreeve: one static binary and its licence. `make image` and `make release` build the image with tools/image.
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
# In a release, NOTICE has the licences of the libraries in the binary.
COPY LICENSE NOTICE* /
COPY portreeve /portreeve
USER 65534:65534
ENTRYPOINT ["/portreeve"]
