#!/usr/bin/env bash
# Held-out accuracy of a tuning by eps and by PEFT. A small Qwen 3 learns the sentences of SST-2 without their labels, by
# eps. Then both sides train LoRA adapters of it on SST-2 as conversations, and merge them: the same settings, the same rows
# in the same order, and for each seed one set of new adapters that PEFT draws; each side draws its own dropout. One program
# scores all models, on the rows of --dev. Prints a line per seed, and the difference paired by seed, with its interval.
#
# usage: tools/bench/tuning.sh [options]      defaults in brackets
#   --train TSV --dev TSV   needed; GLUE's SST-2; may be .gz
#   --width N [256] --layers N [4] --heads N [4] --kv N [2] --headwidth N [64] --inner N [768] --vocabulary N [8000]
#   --epochs N [6]        of the sentences without labels
#   --rows N [16000]      conversations of each tuning; 0: all
#   --batch N [32] --rank N [16] --lr X [1e-3] --dropout X [0.05]   of each tuning; alpha is twice the rank
#   --seeds N [3]         the seeds are 1 to N
#   --threads N [all]     for both sides
#   --keep DIR            leave texts and models there, and use the language model that is already there
#   --python PATH [/usr/bin/python3]  a Python with torch, transformers, tokenizers and peft
#   --bin DIR [build/bin]     where eps, epsd and eps-worker are
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

train='' dev=''
width=256 layers=4 heads=4 kv=2 headwidth=64 inner=768 vocabulary=8000 seq=128 epochs=6
rows=16000 batch=32 rank=16 lr=1e-3 dropout=0.05 seeds=3 threads=$(nproc) keep='' python=/usr/bin/python3 bin=build/bin
take_options "train dev width layers heads kv headwidth inner vocabulary epochs rows batch rank lr dropout seeds threads \
keep python bin" "$@"
need_programs "$bin"
need_python "$python" torch transformers tokenizers peft
for file in "$train" "$dev"; do
    [ -r "$file" ] || misuse "no ${file:-TSV}: give GLUE's SST-2 by --train and --dev"
done
if [ -n "$keep" ]; then mkdir -p "$keep" && work=$keep; else make_work; fi
export OMP_NUM_THREADS=$threads

peer() {
    "$python" tools/bench/peer_tuning.py "$@" --work "$work" --threads "$threads" 2>"$work/peer.log" ||
        { tail -n 3 "$work/peer.log" >&2; exit 1; }
}

if [ ! -e "$work/base/config.json" ]; then
    peer make --train "$train" --dev "$dev" --vocabulary "$vocabulary"
    print_qwen3_config "$vocabulary" >"$work/model/config.json"
    run_training --model "$work/model/config.json" --data "$work/text.jsonl" --eval-data "$work/held_out.jsonl" --device cpu \
        --batch 32 --seq "$seq" --epochs "$epochs" --lr 1e-3 --save-every 0 --eval-every 0
    rm -rf "$work/base.new"
    "$bin/eps" export --model "$work/run/latest" --out "$work/base.new" >>"$work/log"
    mv "$work/base.new" "$work/base"
    grep -hE '^(loss|held out)  ' "$work/log" | sed -E 's/^(loss|held out)  */language model: \1 /'
fi

score() { peer score --model "$1" | tail -n 1; }

echo "untuned: $(score "$work/base")"
: >"$work/pairs"
for ((seed = 1; seed <= seeds; seed++)); do
    peer draw --train "$train" --seed "$seed" --rows "$rows"
    steps=$(($(wc -l <"$work/conversations.jsonl") / batch)) warmup=$((steps / 30))
    peer adapt --model "$work/base" --seed "$seed" --rank "$rank" --dropout "$dropout"
    run_training --model "$work/adapters" --base-model "$work/base" --data "$work/conversations.jsonl" \
        --eval-data "$work/dev.jsonl" --order sequential --device cpu --batch "$batch" --seq "$seq" \
        --steps "$steps" --lr "$lr" --min-lr 0 --schedule cosine --warmup "$warmup" --weight-decay 0.01 --seed "$seed" --save-every 0 --eval-every 0
    own=$("$bin/eps" eval --model "$work/run/latest" --data "$work/dev.jsonl" --device cpu --json | field loss)
    rm -rf "$work/ours"
    "$bin/eps" export --model "$work/run/latest" --merge --out "$work/ours" >>"$work/log"
    theirs_last=$(peer train --model "$work/base" --seed "$seed" --batch "$batch" --lr "$lr" --warmup "$warmup" | tail -n 1 |
        field loss)
    ours_last=$(tail -n 50 "$work/run/metrics.jsonl" | field loss | awk '{ s += $1 } END { printf "%.4f", s / NR }')
    ours=$(score "$work/ours") theirs=$(score "$work/theirs")
    echo "$seed $(field accuracy <<<"$ours") $(field accuracy <<<"$theirs")" >>"$work/pairs"
    echo "seed $seed, $steps steps: accuracy eps $(field accuracy <<<"$ours"), PEFT $(field accuracy <<<"$theirs"); held-out loss" \
        "$(field loss <<<"$ours") and $(field loss <<<"$theirs") (eps eval: $own); mean of the last 50 steps' $ours_last and $theirs_last"
done
echo "accuracy, eps less PEFT: $(difference 2 3 <"$work/pairs")"
