#!/usr/bin/env bash
# Start-up time of `eps train` with weights in the page cache: from the program's start until the first step begins (daemon
# and worker started, weights loaded, memory claimed), and until it is done. Prints the median milliseconds of all rounds.
#
# usage: tools/bench/startup.sh [options]      defaults in brackets
#   --width N [512] --layers N [8] --heads N [8]     of the model; [25.4 million parameters, 102 MB]
#   --batch N [1] --seq N [64]    of the step; the held-out data is one row
#   --rounds N [9]
#   --bin DIR [build/bin]         where eps, epsd and eps-worker are
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

width=512 layers=8 heads=8 batch=1 seq=64 rounds=9 bin=build/bin
take_options "width layers heads batch seq rounds bin" "$@"
need_programs "$bin"

make_work
print_config 256 >"$work/config.json"
write_text $(((batch * 4 + 1) * seq + 1))

train() { # MODEL OUT
    "$bin/eps" train --model "$1" --data "$work/data.txt" --eval-data "$work/held_out.txt" --out "$2" --steps 1 \
        --batch "$batch" --seq "$seq" --warmup 0 --eval-every 0
}
if ! train "$work/config.json" "$work/first" >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi
model=$work/first/latest
echo "model of $(stat -L -c %s "$model/model.safetensors") bytes, $batch x $seq tokens a step, $(nproc) processors"

# Milliseconds from the start to two lines of output: the first step begins, the first step is done.
measure() {
    local began=${EPOCHREALTIME/./} line started="" stepped=""
    while read -r line; do
        case $line in
        out\ *) started=${EPOCHREALTIME/./} ;;
        "step 1/1 "*) stepped=${EPOCHREALTIME/./} ;;
        esac
    done
    echo $(((started - began) / 1000)) $(((stepped - began) / 1000))
}
for ((round = 1; round <= rounds; round++)); do
    rm -rf "$work/run"
    train "$model" "$work/run" | measure
done >"$work/times"

spread() { sort -n | sed -n '1p;$p' | paste -sd-; }
echo "to the first step     $(cut -d ' ' -f 1 "$work/times" | median) ms ($(cut -d ' ' -f 1 "$work/times" | spread) in $rounds rounds)"
echo "to its end            $(cut -d ' ' -f 2 "$work/times" | median) ms ($(cut -d ' ' -f 2 "$work/times" | spread))"
