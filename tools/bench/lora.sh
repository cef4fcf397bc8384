#!/usr/bin/env bash
# Tokens per second of `eps train --lora` and of PEFT, which train adapters of all linear maps of the same random Qwen 3
# on the same minibatches. The base is bf16, and so are the products. The two alternate, so that a busy machine slows both
# alike. The peer is the fastest of the variants that --bases, --checkpoints and --attentions allow, adapters in fp32 or
# bf16, under autocast or not, compiled or not (peer_lora.py). Prints a line per round, and the median ratio.
#
# usage: tools/bench/lora.sh [options]      defaults in brackets
#   --width N [768] --layers N [12] --heads N [8] --kv N [4] --headwidth N [128] --inner N [2304] --vocabulary N [32000]
#   --batch N [8] --seq N [256] --rank N [16]
#   --threads N [all]     for both sides
#   --rounds N [5]        each runs both once
#   --steps N [4]         measured per round, after 2 to warm up
#   --bases NAME [bf16] --checkpoints NAME [off] --attentions NAME [sdpa]  of the peer; "all": each there is
#   --python PATH [/usr/bin/python3]  a Python with torch, transformers and peft
#   --bin DIR [build/bin]     where eps, epsd and eps-worker are
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

width=768 layers=12 heads=8 kv=4 headwidth=128 inner=2304 vocabulary=32000 batch=8 seq=256 rank=16
threads=$(nproc) rounds=5 steps=4 bases=bf16 checkpoints=off attentions=sdpa python=/usr/bin/python3 bin=build/bin
take_options "width layers heads kv headwidth inner vocabulary batch seq rank threads rounds steps bases checkpoints
 attentions python bin" "$@"
need_programs "$bin"
need_python "$python" torch transformers peft

make_work
mkdir "$work/model"
print_qwen3_config "$vocabulary" >"$work/model/config.json"
write_tokens $(((steps + 2) * batch * seq + 1)) # one window per row and step

# peer WHAT OPTION...
peer() {
    "$python" tools/bench/peer_lora.py "$1" --model "$work/model" --data "$work/data.bin" --batch "$batch" \
        --seq "$seq" --rank "$rank" --threads "$threads" --steps "$steps" "${@:2}" 2>"$work/peer.log" ||
        { tail -n 3 "$work/peer.log" >&2; exit 1; }
}

ours() {
    OMP_NUM_THREADS="$threads" run_training --model "$work/model" --data "$work/data.bin" --eval-data \
        "$work/held_out.bin" --order sequential --lora "rank=$rank" --base bf16 --precision bf16 --device cpu --batch \
        "$batch" --seq "$seq" --steps $((steps + 2)) --save-every 0 --eval-every 0 --lr 1e-4 --schedule constant --warmup 0
    tail -n +3 "$work/run/metrics.jsonl" | field tokens_per_s | median
}

peer make
best=$(peer train --base "$bases" --checkpoint "$checkpoints" --attention "$attentions" | tail -n 1)
way=()
for name in base autocast adapters checkpoint attention compile; do
    way+=("--$name" "$(field "$name" <<<"$best")")
done
echo "Qwen 3, width $width, $layers layers, $batch x $seq tokens, rank $rank, $threads threads," \
    "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
echo "peer $(field peer <<<"$best"), fastest with ${way[*]}"
ratios=()
for ((round = 1; round <= rounds; round++)); do
    mine=$(ours)
    line=$(peer train "${way[@]}" | tail -n 1)
    theirs=$(field tokens_per_s <<<"$line")
    ratios+=("$(awk -v a="$mine" -v b="$theirs" 'BEGIN { printf "%.3f", a / b }')")
    echo "  round $round: eps $mine tokens/s, peer $theirs, ratio ${ratios[-1]}; last losses" \
        "$(tail -n 1 "$work/run/metrics.jsonl" | field loss) and $(field loss <<<"$line"); load $(cut -d' ' -f1 /proc/loadavg)"
done
echo "  median ratio $(printf '%s\n' "${ratios[@]}" | median)"
