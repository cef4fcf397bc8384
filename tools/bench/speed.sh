#!/usr/bin/env bash
# Tokens per second of `eps train` and of PyTorch with the same model: activations kept on both sides, and recomputed on
# both, at each precision. The two alternate, so that a busy machine slows both alike. The peer is the fastest variant of
# the given PyTorch installations; ours runs as users run it, with a private daemon and worker. Prints a line per round,
# and for each comparison the median ratio and both sides' memory.
#
# usage: tools/bench/speed.sh [options]      defaults in brackets
#   --family gpt2|qwen3 [gpt2]; qwen3 also has --kv N [4] --inner N [1536] --headwidth N [128]: heads of keys and values,
#                         the MLP's width, a head's width
#   --width N [384] --layers N [6] --heads N [6] --vocabulary N [256] --batch N [8] --seq N [256]
#   --threads N [all]     for both sides
#   --rounds N [5]        each runs both once
#   --steps N [8]         measured per round, after 2 to warm up
#   --precisions LIST ["fp32 bf16"]
#   --pythons LIST [/usr/bin/python3]  Pythons with torch
#   --bin DIR [build/bin]      where eps, epsd and eps-worker are
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

width=384 layers=6 heads=6 vocabulary=256 batch=8 seq=256
threads=$(nproc) rounds=5 steps=8 precisions="fp32 bf16" pythons=/usr/bin/python3 bin=build/bin
family=gpt2 kv=4 inner=1536 headwidth=128
take_options "family kv inner headwidth width layers heads vocabulary batch seq threads rounds steps precisions pythons bin" "$@"
need_programs "$bin"
for python in $pythons; do
    need_python "$python" torch
done

make_work

case $family in
gpt2) print_config "$vocabulary" ;;
qwen3) print_qwen3_config "$vocabulary" ;;
*) misuse "--family is gpt2 or qwen3, not $family" ;;
esac >"$work/config.json"
write_tokens $(((steps + 2) * batch * seq + 1)) # one window per row and step

# ours BUDGET: prints tokens/s; writes device and host memory to $work/held
ours() {
    OMP_NUM_THREADS="$threads" run_training "${options[@]}" --data "$work/data.bin" --eval-data "$work/data.bin" \
        --steps $((steps + 2)) --save-every 0 --eval-every 0 --lr 3e-4 --device-mem "$1"
    tail -n 1 "$work/run/metrics.jsonl" |
        awk -F'[:,]' '{ for (i = 1; i < NF; i++) if ($i ~ /device_peak_bytes|host_bytes/) sum += $(i + 1); print sum }' \
            >"$work/held"
    tail -n +3 "$work/run/metrics.jsonl" | field tokens_per_s | median
}

# peer PYTHON ATTENTION OPTIMIZER COMPILE
peer() {
    "$1" tools/bench/peer_pytorch.py --width "$width" --layers "$layers" --heads "$heads" --vocabulary "$vocabulary" \
        --family "$family" --kv "$kv" --inner "$inner" --headwidth "$headwidth" --batch "$batch" --seq "$seq" --threads "$threads" --steps "$steps" --precision "$precision" \
        --checkpoint "$checkpoint" --attention "$2" --optimizer "$3" --compile "$4" | tail -n 1
}

# compare: kept with kept, or recomputed with recomputed, according to $checkpoint
compare() {
    local budget line best="" speed fastest=0 mine theirs round
    local -a ratios=()

    options=(--model "$work/config.json" --batch "$batch" --seq "$seq" --precision "$precision")
    if [ "$checkpoint" = on ]; then
        budget=$(recomputing_budget)
    else
        budget=$(held_with_any_memory)
        echo "eps, whose planner may use any memory, keeps all activations of $(kept "$budget") of $layers blocks"
    fi
    for python in $pythons; do # which way is PyTorch's fastest
        line=$(peer "$python" all all all)
        speed=$(field tokens_per_s <<<"$line")
        if awk -v a="$speed" -v b="$fastest" 'BEGIN { exit !(a > b) }'; then
            fastest=$speed best=$line best_python=$python
        fi
    done
    local -a way=("$best_python" "$(field attention <<<"$best")" "$(field optimizer <<<"$best")"
        "$(field compile <<<"$best")")
    echo "$precision, activations $([ "$checkpoint" = on ] && echo recomputed || echo kept) on both sides:" \
        "peer $(field peer <<<"$best") (${way[1]} attention, ${way[2]} AdamW, compile ${way[3]})"
    for ((round = 1; round <= rounds; round++)); do
        mine=$(ours "$budget")
        line=$(peer "${way[@]}")
        theirs=$(field tokens_per_s <<<"$line")
        ratios+=("$(awk -v a="$mine" -v b="$theirs" 'BEGIN { printf "%.3f", a / b }')")
        echo "  round $round: eps $mine tokens/s, peer $theirs, ratio ${ratios[-1]}"
    done
    echo "  median ratio $(printf '%s\n' "${ratios[@]}" | median); held: eps $(mib "$(cat "$work/held")") (device and host)," \
        "peer $(mib "$(field rss_bytes <<<"$line")") (process)"
}

echo "$family, width $width, $layers layers, $batch x $seq tokens, vocabulary $vocabulary, $threads threads," \
    "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
for precision in $precisions; do
    for checkpoint in off on; do
        compare
    done
done
