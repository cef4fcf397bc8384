#!/usr/bin/env bash
# What nvcc said of the kernels (build/cuda-kernels.txt): each was compiled for every architecture, and none spills
# registers.
#
# usage: tests/cuda_kernels.sh TABLE
set -euo pipefail
table=$1
spilling=$(awk 'NR > 1 && $5 > 0' "$table")
[ -z "$spilling" ] || {
    echo "kernels that spill registers:" >&2
    cat <(head -n 1 "$table") <(echo "$spilling") >&2
    exit 1
}
for target in sm_80 sm_86 sm_89 sm_90 sm_100; do
    n=$(awk -v target=$target 'NR > 1 && $1 == target' "$table" | wc -l)
    [ "${kernels=$n}" -eq "$n" ] && [ "$n" -gt 0 ] || {
        echo "$target has $n kernels of $kernels" >&2
        exit 1
    }
done
echo "$kernels kernels, $(awk 'NR > 1 && $2 > most { most = $2 } END { print most }' "$table") registers at most"
