#!/usr/bin/env bash
# Compares random models of every family with PyTorch and transformers: losses of masked tokens, gradients after one step,
# weights after twenty, in fp32 and bf16. Installs these in a virtual environment, build/oracle (some GB). Run
# tools/quickstart.sh first, which builds.
set -euo pipefail

case "${1-}" in
--help | -h) echo "usage: tools/oracle.sh [MODELS]   # models of each family: 12 unless told otherwise"; exit ;;
*[!0-9]*) echo "oracle.sh: $1 is no number of models; usage: tools/oracle.sh [MODELS]" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
if [ ! -x build/bin/eps ]; then
    echo "oracle.sh: build/bin/eps is missing; run tools/quickstart.sh first" >&2
    exit 1
fi
if [ ! -x build/oracle/bin/pip ] && ! python3 -m venv build/oracle; then
    echo "oracle.sh: python3 cannot make a virtual environment; try: apt-get install python3-venv" >&2
    exit 1
fi
build/oracle/bin/pip install --quiet --requirement tests/oracle/requirements.txt
build/oracle/bin/python tests/oracle/masked.py
exec build/oracle/bin/python tests/oracle/distribution.py --family all --models "${1:-12}"
