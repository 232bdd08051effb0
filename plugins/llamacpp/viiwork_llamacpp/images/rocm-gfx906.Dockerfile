# A node with llama.cpp for gfx906: Radeon VII, MI50, MI60. Build it in a folder with wheels/:
# docker build -t viiwork:local .
# ROCm 6.3 is the last one whose rocBLAS comes with kernels for these cards.
ARG ROCM=6.3.4
ARG UBUNTU=24.04

FROM rocm/dev-ubuntu-${UBUNTU}:${ROCM}-complete AS engine
# A tag of github.com/ggml-org/llama.cpp. The clone is shallow, so the build's number is told from the tag.
ARG LLAMA_CPP=b10068
ARG GPU_TARGETS=gfx906
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential ca-certificates cmake git ninja-build \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN git clone --depth 1 --branch "${LLAMA_CPP}" https://github.com/ggml-org/llama.cpp .
RUN HIPCXX="$(hipconfig -l)/clang" HIP_PATH="$(hipconfig -R)" \
    cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_HIP=ON -DGPU_TARGETS="${GPU_TARGETS}" \
        -DAMDGPU_TARGETS="${GPU_TARGETS}" -DGGML_NATIVE=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_NUMBER="${LLAMA_CPP#b}" -DLLAMA_BUILD_COMMIT="$(git rev-parse --short HEAD)" \
    && cmake --build build --target llama-server \
    && mkdir /engine \
    && cp -a build/bin/llama-server /engine/ \
    && find build -name '*.so*' -exec cp -a {} /engine/ ';'

# The image with all of ROCm, since the smaller ones lack rocBLAS and its kernels.
FROM rocm/dev-ubuntu-${UBUNTU}:${ROCM}-complete
ARG VIIWORK="viiwork[llamacpp,tailscale,mdns]"
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libgomp1 python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY --from=engine /engine /opt/llama.cpp
ENV PATH=/opt/viiwork/bin:/opt/llama.cpp:/opt/rocm/bin:$PATH \
    LD_LIBRARY_PATH=/opt/llama.cpp:/opt/rocm/lib
COPY wheels/ /wheels/
# What lies in wheels/ is preferred; see the README there.
# hadolint ignore=DL3013
RUN python3 -m venv /opt/viiwork \
    && pip install --no-cache-dir --find-links /wheels --pre "${VIIWORK}"
STOPSIGNAL SIGTERM
CMD ["viiwork", "serve"]
