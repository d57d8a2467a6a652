#!/bin/sh
# install.sh REQUIREMENT [torch|vllm]: its pinned packages into /opt/guerdon, which gets no pip.
# Only what needs torch asks torch's own index, and only for the CPU build.
set -eu
python -m venv --without-pip /opt/guerdon
index="" constraints=constraints.txt
if [ "${2:-}" = vllm ]; then
  constraints=constraints-vllm-cuda.txt
elif [ "${2:-}" = torch ] && grep -q '^torch==.*+cpu' constraints.txt; then
  index="--extra-index-url $TORCH_INDEX_URL"
fi
# shellcheck disable=SC2086
/opt/build/bin/pip --python /opt/guerdon/bin/python install -q -c $constraints --find-links /wheels $index "$1"
