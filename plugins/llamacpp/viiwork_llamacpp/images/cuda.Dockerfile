# A node with llama.cpp for NVIDIA cards. Build it in a folder with wheels/: docker build -t viiwork:local .
ARG CUDA=12.8.1
ARG UBUNTU=24.04

FROM nvidia/cuda:${CUDA}-devel-ubuntu${UBUNTU} AS engine
# A tag of github.com/ggml-org/llama.cpp. The clone is shallow, so the build's number is told from the tag.
ARG LLAMA_CPP=b10068
# Compute capabilities, such as 86;89;120. default: all that llama.cpp chooses for this CUDA.
ARG CUDA_ARCHITECTURES=default
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential ca-certificates cmake git ninja-build \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN git clone --depth 1 --branch "${LLAMA_CPP}" https://github.com/ggml-org/llama.cpp .
RUN if [ "${CUDA_ARCHITECTURES}" != default ]; then set -- "-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES}"; fi \
    && cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON -DGGML_NATIVE=OFF \
        -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_NUMBER="${LLAMA_CPP#b}" -DLLAMA_BUILD_COMMIT="$(git rev-parse --short HEAD)" \
        -DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined "$@" \
    && cmake --build build --target llama-server \
    && mkdir /engine \
    && cp -a build/bin/llama-server /engine/ \
    && find build -name '*.so*' -exec cp -a {} /engine/ ';'

FROM nvidia/cuda:${CUDA}-runtime-ubuntu${UBUNTU}
ARG VIIWORK="viiwork[llamacpp,tailscale,mdns]"
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libgomp1 python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY --from=engine /engine /opt/llama.cpp
ENV PATH=/opt/viiwork/bin:/opt/llama.cpp:$PATH \
    LD_LIBRARY_PATH=/opt/llama.cpp:$LD_LIBRARY_PATH
COPY wheels/ /wheels/
# What lies in wheels/ is preferred; see the README there.
# hadolint ignore=DL3013
RUN python3 -m venv /opt/viiwork \
    && pip install --no-cache-dir --find-links /wheels --pre "${VIIWORK}"
STOPSIGNAL SIGTERM
CMD ["viiwork", "serve"]
