#!/usr/bin/env bash
# Compares random models of every family with PyTorch and transformers: logits, losses of masked tokens, gradients after
# one step and of a loss of a program's own, weights after twenty, in fp32 and bf16; loads what eps exports of every family in
# transformers, which may not warn; and fine-tunes a classifier with eps and with transformers' own Trainer. Installs all of it
# in a virtual environment, build/oracle (some GB). Build all first: cmake --preset release && cmake --build build.
set -euo pipefail

case "${1-}" in
--help | -h) echo "usage: tools/oracle.sh [MODELS]   # models of each family: 12 unless told otherwise"; exit ;;
*[!0-9]*) echo "oracle.sh: $1 is no number of models; usage: tools/oracle.sh [MODELS]" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
for program in eps test_exact_logits; do
    if [ ! -x "build/bin/$program" ]; then
        echo "oracle.sh: build/bin/$program is missing; try: cmake --preset release && cmake --build build" >&2
        exit 1
    fi
done
if [ ! -x build/oracle/bin/pip ] && ! python3 -m venv build/oracle; then
    echo "oracle.sh: python3 cannot make a virtual environment; try: apt-get install python3-venv" >&2
    exit 1
fi
build/oracle/bin/pip install --quiet --requirement tests/oracle/requirements.txt
python=build/oracle/bin/python
$python tests/oracle/float64.py
$python tests/oracle/check_types.py build/bin
$python tests/oracle/check_saved.py --bin build/bin
$python tests/oracle/draw_keys.py
$python tests/oracle/draw_adapters.py
$python tests/oracle/masked.py
$python tests/oracle/classify.py
build/oracle/bin/pip install --quiet --config-settings cmake.define.EPS_BUILT="$PWD/build" ./client/python
$python tests/oracle/own_loss.py
exec $python tests/oracle/distribution.py --family all --steps 0 1 20 --models "${1:-12}"
