# zinc with its server, on the CPU and on GPUs with Vulkan.
#
#   docker build -t zinc .
#   docker run --rm zinc run "Tell me a short story about a fox."
#   docker run --rm -p 127.0.0.1:8080:8080 -v "$PWD:/models" zinc serve /models/MODEL.gguf --host 0.0.0.0 --allow-public
#
# AMD and Intel GPUs: add --device /dev/dri. NVIDIA: add --gpus all, with the NVIDIA Container Toolkit.
# hadolint global ignore=DL3008,DL3013

FROM python:3.12-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
# The Slang compiler of the Vulkan kernels is part of slangtorch, which names torch as a dependency and needs none of it.
RUN pip install --no-cache-dir cmake nanobind ninja numpy scikit-build-core \
    && pip install --no-cache-dir --no-deps slangtorch==1.3.22
WORKDIR /zinc
COPY . .
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libvulkan1 mesa-vulkan-drivers \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --find-links /wheels 'zinc-llm[server,hub,structured]' \
    && useradd --create-home --uid 1000 zinc
# The NVIDIA runtime mounts the parts of its driver that are named here; Vulkan is among the graphics.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,graphics,utility
USER 1000
EXPOSE 8080
ENTRYPOINT ["zinc"]
CMD ["--help"]
