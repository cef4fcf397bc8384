#!/usr/bin/env bash
# Device memory for training one model with one batch, as the rows of a table. PyTorch's figures are measured by
# tools/bench/peer_memory.py: gradient accumulation over microbatches, and AdamA in place. Ours are what the worker claims, as
# planned, with the smallest sufficient --device-mem, in two modes. L2L: the host has no room for activation checkpoints, so those
# of some layers stay on the device. Constant memory: they are on the host. The daemon's host memory is printed, too.
#
# usage: tools/bench/bench_memory.sh [options]      defaults, BERT-Large's shape, in brackets
#   --layers N [24] --width N [1024] --heads N [16] --vocabulary N [30522] --seq N [128] --batch N [32]
#   --microbatch N [4]        except with --against plain, where ours takes what fits
#   --precision fp32|bf16 [fp32] --moments fp32|bf16 [fp32]     for ours
#   --against accumulate|plain [accumulate]    plain: PyTorch takes all rows at once, and the table has two rows
#   --steps N [2]             for PyTorch, whose state exists after the first update; ours claims all memory before its step
#   --python PATH [/usr/bin/python3]  a Python with torch
#   --bin DIR [build/bin]     where eps, epsd and eps-worker are
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

layers=24 width=1024 heads=16 vocabulary=30522 seq=128 batch=32 microbatch=4
precision=fp32 moments=fp32 against=accumulate steps=2 python=/usr/bin/python3 bin=build/bin
take_options "layers width heads vocabulary seq batch microbatch precision moments against steps python bin" "$@"
case "$against" in
accumulate) rows=$microbatch ;;
plain) rows=auto ;;
*) misuse "--against $against is neither accumulate nor plain" ;;
esac
need_programs "$bin"
need_python "$python" torch

make_work
print_config "$vocabulary" >"$work/config.json"
write_tokens $((batch * seq + 1))
options=(--model "$work/config.json" --batch "$batch" --seq "$seq" --microbatch "$rows" --precision "$precision" --moments "$moments")

# peer MODE: PyTorch's peak in bytes
peer() {
    "$python" tools/bench/peer_memory.py "$1" --layers "$layers" --width "$width" --heads "$heads" --vocabulary "$vocabulary" \
        --seq "$seq" --batch "$batch" --microbatch "$microbatch" --steps "$steps" | sed -n 's/.*"peak_bytes": \([0-9]*\).*/\1/p'
}
# ours [OPTION...]: peak device and host memory of a run with the smallest sufficient --device-mem
ours() {
    run_training "${options[@]}" "$@" --data "$work/data.bin" --eval-data "$work/held_out.bin" --steps 1 \
        --save-every 0 --eval-every 0 --device-mem "$("$bin/eps" plan "${options[@]}" "$@" --minimum)"
    sed -n 's/.*"device_peak_bytes": *\([0-9]*\).*"host_bytes": *\([0-9]*\).*/\1 \2/p' "$work/run/metrics.jsonl"
}
# row NAME PUBLISHED DEVICE_BYTES [HOST_BYTES]
row() {
    awk -v name="$1" -v published="$2" -v device="$3" -v host="${4-}" -v base="$base" 'BEGIN {
        printf "| %s | %.0f | %s | %s | %s |\n", name, device, device == base ? "" : sprintf("%+.1f %%, 1/%.1f", 100 * (device / base - 1), base / device),
            published, host }'
}

echo "$layers layers of $width, vocabulary $vocabulary, $batch x $seq tokens, ours: microbatches of $rows, $precision," \
    "moments in $moments; PyTorch $("$python" -c 'import torch; print(torch.__version__)')"
echo "| what | device bytes | against the first | published | host bytes |"
echo "|---|---|---|---|---|"
base=$(peer "$against")
row "PyTorch, $against" '' "$base"
if [ "$against" = accumulate ]; then
    row "PyTorch, AdamA in place" '-23 %' "$(peer adama)"
    host=$(stashless "${options[@]}")
    row "eps, L2L: layers' inputs on the device" '-45 %' $(ours --host-mem $((host + 65536)))
fi
row "eps, constant memory: they wait on the host" '' $(ours)
