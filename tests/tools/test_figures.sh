#!/usr/bin/env bash
# The tables of planned figures in README.md and tools/bench/README.md are those that eps plans.
#
# usage: tests/tools/test_figures.sh BUILD_DIRECTORY
set -euo pipefail
bin=$(realpath "$1")/bin
cd "$(dirname "$0")/../.."
exec tools/bench/figures.sh --bin "$bin"
