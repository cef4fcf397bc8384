#!/usr/bin/env bash
# What nvcc said of the kernels (build/cuda-kernels.txt): each was compiled for every architecture, and none spills.
#
# usage: tests/cuda_kernels.sh TABLE
set -euo pipefail
spilling=$(awk 'NR > 1 && $5 > 0' "$1")
[ -z "$spilling" ] || {
    echo "kernels that spill registers:" >&2
    cat <(head -1 "$1") <(echo "$spilling") >&2
    exit 1
}
for target in sm_80 sm_86 sm_89 sm_90 sm_100; do
    n=$(awk -v target=$target 'NR > 1 && $1 == target' "$1" | wc -l)
    [ "${kernels=$n}" -eq "$n" ] && [ "$n" -gt 0 ] || {
        echo "$target has $n kernels of ${kernels}" >&2
        exit 1
    }
done
echo "$kernels kernels, $(awk 'NR > 1 && $2 > most { most = $2 } END { print most }' "$1") registers at most"
