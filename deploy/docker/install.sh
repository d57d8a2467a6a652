#!/bin/sh
# install.sh REQUIREMENT [torch]: its pinned packages into /opt/guerdon, which gets no pip.
# Only what needs torch asks torch's own index, and only for the CPU build.
set -eu
python -m venv --without-pip /opt/guerdon
index=""
if [ "${2:-}" = torch ] && grep -q '^torch==.*+cpu' constraints.txt; then
  index="--extra-index-url https://download.pytorch.org/whl/cpu"
fi
# shellcheck disable=SC2086
/opt/build/bin/pip --python /opt/guerdon/bin/python install -q -c constraints.txt --find-links /wheels $index "$1"
