#!/usr/bin/env bash
# Builds the Python package's wheel from a build's programs, installs it in a fresh virtual environment, and runs its tests
# there. Exits with 77 where no package can be downloaded.
#
# usage: tests/client/python/run.sh BUILD      of the release preset
set -euo pipefail
cd "$(dirname "$0")/../../.."

build=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
if ! python3 -m venv "$work/venv"; then
    echo "run.sh: python3 cannot make a virtual environment; try: apt-get install python3-venv" >&2
    exit 77
fi
python=$work/venv/bin/python
if ! "$python" -m pip install --quiet --no-compile pytest numpy pandas pyarrow datasets safetensors tensorboard wandb; then
    echo "run.sh: no packages from PyPI" >&2
    exit 77
fi
"$python" -m pip install --quiet --config-settings "build-dir=$work/build" \
    --config-settings "cmake.define.EPS_BUILT=$build" ./client/python
cd tests/client/python
export PYTHONPYCACHEPREFIX=$work/compiled # not in this folder
"$python" -m pytest -q -p no:cacheprovider --basetemp "$work/tmp" .
