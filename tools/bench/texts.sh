#!/usr/bin/env bash
# Tokens per second of `eps generate` with several texts in one call, on a model whose weights do not fit into --device-mem;
# of another build's programs too, if they are given. Calls alternate, so that a busy machine slows all alike. Prints
# medians, and ratios to one text by the same programs.
#
# usage: tools/bench/texts.sh [options]      defaults in brackets
#   --width N [768] --layers N [12] --heads N [12] --vocabulary N [50257]     of the model; [GPT-2 124M]
#   --budget BYTES [128MiB]       device memory
#   --texts LIST ["1 4 16"]       numbers of texts; their prompts have 8 to 23 tokens
#   --tokens N [16]               new tokens of each
#   --rounds N [5]
#   --bin DIR [build/bin]         where eps, epsd and eps-worker are
#   --against DIR                 the same of the other build
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

width=768 layers=12 heads=12 vocabulary=50257 seq=64
budget=128MiB texts="1 4 16" tokens=16 rounds=5 bin=build/bin against=
take_options "width layers heads vocabulary budget texts tokens rounds bin against" "$@"
need_programs "$bin"
[ -z "$against" ] || need_programs "$against"

make_work
print_config "$vocabulary" >"$work/config.json"
write_tokens $((seq + 1))
if ! "$bin/eps" train --model "$work/config.json" --data "$work/data.bin" --eval-data "$work/data.bin" --out "$work/run" \
    --steps 1 --batch 1 --seq "$seq" >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi

# generate BIN N: prints tokens/s. The first token of each text is the prompt's, which takes another time.
generate() {
    local prompts=() i
    for ((i = 0; i < $2; i++)); do
        prompts+=(--ids "$(seq -s, "$i" $((i + 7 + i % 16)))")
    done
    "$1/eps" generate --model "$work/run" --device-mem "$budget" --tokens "$tokens" "${prompts[@]}" 2>&1 >"$work/said" |
        sed -n 's/.* \([0-9.]*\) tokens\/s; .*/\1/p'
}

model=$work/run/latest/model.safetensors
echo "model of $(stat -L -c %s "$model") bytes, $budget on the device, $tokens tokens a text, $rounds rounds, $(nproc) processors"
for ((round = 1; round <= rounds; round++)); do
    for n in $texts; do
        generate "$bin" "$n" >>"$work/ours.$n"
        [ -z "$against" ] || generate "$against" "$n" >>"$work/theirs.$n"
    done
done

# report NAME FILES: a line for each number of texts
report() {
    local one="" n rate
    for n in $texts; do
        rate=$(median <"$work/$2.$n")
        one=${one:-$rate}
        echo "$1  $n texts  $rate tokens/s  $(awk -v a="$rate" -v b="$one" 'BEGIN { printf "%.2f", a / b }')"
    done
}
report "$bin" ours
[ -z "$against" ] || report "$against" theirs
