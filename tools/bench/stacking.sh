#!/usr/bin/env bash
# Progressive stacking (Gong et al., ICML 2019): a model that begins with a quarter of its blocks, is grown to a half and then to
# all of them by eps train --grow, beside the same model with all blocks from the start: the same steps, rates and data.
# Prints the held-out loss of each seed, the difference paired by seed with its interval, and the blocks computed.
#
# usage: tools/bench/stacking.sh [options]      defaults in brackets
#   --keep DIR            where the runs stay: what is done is not run again; needed
#   --data FILE           text, as bytes; needed; its last 1 % is held out
#   --layers N [8] --width N [192] --heads N [4] --seq N [128]   of the whole model; layers: a multiple of 4
#   --batch N [16] --steps N [3000] --lr X [1e-3] --seeds N [3]
#   --bounds "A B" ["1/3 2/3"]   the parts of the steps after which it grows
#   --moments copy|zero [copy]   of the copies
#   --device NAME [cpu]   of the runs; --memory SIZE []   of it for each; --jobs N [1]   runs at once
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

keep='' data='' layers=8 width=192 heads=4 seq=128 batch=16 steps=3000 lr=1e-3 seeds=3
bounds='1/3 2/3' moments=copy bin=build/bin
take_options "keep data device memory jobs layers width heads seq batch steps lr seeds bounds moments bin" "$@"
need_programs "$bin"
[ -n "$keep" ] || misuse "--keep is needed: a directory for the runs"
[ -r "$data" ] || misuse "no ${data:-FILE}: give text by --data"
[ $((layers % 4)) -eq 0 ] && [ "$layers" -gt 0 ] || misuse "--layers $layers is no multiple of 4"
mkdir -p "$keep"
read -r first second <<<"$bounds"
# shellcheck disable=SC2004
first=$(($steps * $first)) second=$(($steps * $second)) # 3000 * 1/3

# begin OUT LAYERS STEPS SEED: all stages share the schedule of the whole run, so a stage ends by its steps alone
begin() {
    train_once "$1" --keep 1 --model "$keep/$2.json" --data "$data" --batch "$batch" --seq "$seq" --steps "$3" --lr "$lr" \
        --schedule constant --warmup $((steps / 30)) --seed "$4" --save-every 0 --eval-every 0
}

loss() { field eval_loss <"$1/metrics.jsonl" | tail -n 1; }

# grown SEED: the model that grows
grown() {
    begin "$keep/quarter-$1" $((layers / 4)) "$first" "$1"
    train_once "$keep/half-$1" --keep 1 --resume "$keep/quarter-$1" --grow "$((layers / 4)),moments=$moments" --steps "$second"
    train_once "$keep/grown-$1" --keep 1 --resume "$keep/half-$1" --grow "$((layers / 2)),moments=$moments" --steps "$steps"
}

print_config 256 >"$keep/$layers.json"
sed "s/\"n_layer\": $layers,/\"n_layer\": $((layers / 4)),/" "$keep/$layers.json" >"$keep/$((layers / 4)).json"
for ((seed = 1; seed <= seeds; seed++)); do
    at_once begin "$keep/whole-$seed" "$layers" "$steps" "$seed"
    at_once grown "$seed"
done
finish
: >"$keep/pairs"
for ((seed = 1; seed <= seeds; seed++)); do
    grown=$(loss "$keep/grown-$seed")
    whole=$(loss "$keep/whole-$seed")
    echo "$grown $whole" >>"$keep/pairs"
done
echo "held-out loss: grown $(cut -d ' ' -f 1 "$keep/pairs" | paste -sd ' '); whole from the start" \
    "$(cut -d ' ' -f 2 "$keep/pairs" | paste -sd ' '); difference $(difference 1 2 <"$keep/pairs")"
awk -v a="$first" -v b="$second" -v n="$steps" 'BEGIN {
    printf "tokens x layers: %.3f of the whole model'"'"'s\n", (a / 4 + (b - a) / 2 + n - b) / n }'
