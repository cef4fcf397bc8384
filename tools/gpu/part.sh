#!/usr/bin/env bash
# Runs $part. tools/gpu_check.sh starts it under a time limit, with its options in the environment.
set -uo pipefail
. tools/bench/common.sh
. tools/gpu/programs.sh
. tools/gpu/common.sh
# shellcheck disable=SC2154
case "$part" in
products | rows | copies | attention | families | convolutions) file=measure ;;
gpt2 | fsdp2 | qwen25 | qwen8b | lengths) file=published ;;
bert | t5) file=rivals ;;
profile) file=probe ;;
relay | large | larger | small | depth) file=relay ;;
computes) file=conformance ;;
memcheck) file=sanitizer ;;
*) file=$part ;;
esac
# shellcheck source=/dev/null
. "tools/gpu/$file.sh"
make_work
trap ended TERM
"part_$part"
