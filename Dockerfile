# The workbook in a container; docs/containers.md has the lines to run it.
#
#   docker build -t rn50 .
#   docker build -t rn50 --build-arg BASE=debian:bookworm-slim .      without a GPU
#
# The only place that names the NVIDIA image.
ARG BASE=nvcr.io/nvidia/pytorch:25.12-py3
FROM ${BASE}
WORKDIR /workspace/resnet50

# What Horovod is built with, and what other hosts are reached by; an MPI that is there is kept.
RUN apt-get -q update \
    && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends \
        cmake g++ make openssh-client openssh-server python3-dev python3-venv \
        $(command -v mpirun >/dev/null || echo libopenmpi-dev openmpi-bin) \
    && rm -rf /var/lib/apt/lists/*

# The MPI operator mounts the keys of a job; they belong to another user, and every pod is new.
RUN mkdir -p /run/sshd \
    && echo "StrictModes no" >/etc/ssh/sshd_config.d/rn50.conf \
    && printf "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n" \
        >/etc/ssh/ssh_config.d/rn50.conf

# The environment, in a folder that a mounted checkout does not hide. Only what decides about it is
# copied first, so that an edit elsewhere reuses this layer instead of installing everything again.
# Without PIP_EXTRA_INDEX_URL (PyTorch's index of CPU builds), the plain base gets the CUDA build of
# PyTorch: several GB that it cannot use.
ARG PIP_EXTRA_INDEX_URL
ENV RN50_VENV=/opt/rn50
COPY Makefile pyproject.toml requirements-cpu.txt requirements-gpu.txt ./
COPY scripts/setup.py scripts/horovod_wheel.py scripts/
COPY rn50/__init__.py rn50/
COPY rn50lib/__init__.py rn50lib/
COPY data_prep/__init__.py data_prep/
COPY workshop/__init__.py workshop/
RUN make setup && rm -rf /root/.cache
COPY . .
ENV PATH=/opt/rn50/bin:${PATH}

EXPOSE 8888
CMD ["bash"]
