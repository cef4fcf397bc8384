# shellcheck shell=bash
# Whole runs of published shapes, each a row: all its options are named, its host memory is there before it begins, and its time
# stands beside what was predicted for an H200 behind a link of 64 GB/s, with the figure that would show the prediction wrong;
# and beside the plan of the same options by this machine's own profile, where `profile` has measured one.
# shellcheck disable=SC2154,SC2034 # their options and work folder come from outside; print_config reads shapes

. tools/gpu/relay.sh

# row NAME SECONDS STEPS TOKENS PREDICTED MOST OPTION...: runs and judges one. PREDICTED and MOST are milliseconds; a run that
# takes longer than MOST shows the prediction wrong. All steps but the first count.
row() {
    local name=$1 seconds=$2 n=$3 tokens=$4 predicted=$5 most=$6 planned timeline ms
    shift 6
    fits "$name" --batch "$(rows "$tokens")" "$@" || return 0
    timeline=$(plan --batch "$(rows "$tokens")" --timeline --json "$@")
    planned=$(sed -n 's/.*"step_ms": *\([0-9.]*\).*/\1/p' <<<"$timeline")
    [[ $timeline == *'"measured": true'* ]] || planned="${planned:-?} (assumed: not by this machine's profile)"
    steps "$name" "$seconds" "$n" "$tokens" "$@" || return 0
    ms=$(field step_ms "$work/$name/metrics.jsonl" | tail -n +2 | middle)
    fact "$name-way" "$(grep -ho 'attention: .*' "$work/$name/log" | sort -u | paste -sd ';')"
    judge "$name" "$ms" "$predicted" "$most" "$(awk -v ms="$ms" -v tokens="$tokens" -v n="$(parameters)" 'BEGIN {
        printf "%.1f ms a step, %.0f tokens/s, %.1f TFLOP/s at 6 a parameter", ms, tokens / ms * 1e3, 6 * n * tokens / ms * 1e-9 }')$(
        ); planned $planned ms; eps train --precision bf16 --batch $(rows "$tokens") --seq $seq $* --host-mem 110GiB --no-save"
    rm -rf "${work:?}/$name"
}

# judge NAME MS PREDICTED MOST TEXT
judge() {
    local verdict=short said="falsified: more than $4 ms"
    ! awk -v ms="$2" -v most="$4" 'BEGIN { exit !(ms + 0 > 0 && ms + 0 <= most + 0) }' || verdict=passed said="falsified above $4"
    finding "$verdict" "$1" "predicted $3 ms ($said): $5"
}

# What every row has; --parts 1 with adamw is Adam.
readonly exact=(--parts 1 --optimizer adamw --commit eager)

# GPT-2 1.5 B, 16 Ki tokens: the bytes that the host moves explain the differences.
part_gpt2() {
    shape 1600 48 25 1024
    eps=$(programs)/eps
    take_cudnn
    watch_clocks
    row gpt2-fp32 24 6 16384 886 1019 "${exact[@]}" --grad-dtype fp32 --moments fp32 --master fp32
    row gpt2-bf16 23 6 16384 784 902 "${exact[@]}" --grad-dtype bf16 --moments fp32 --master fp32
    row gpt2-moments 22 6 16384 582 650 "${exact[@]}" --grad-dtype bf16 --moments bf16 --master fp32
    row gpt2-masterless 22 6 16384 495 569 "${exact[@]}" --grad-dtype bf16 --moments bf16 --master none
    watch_clocks_end
}

# row_ms NAME: the milliseconds of a row of this call that was judged
row_ms() {
    sed -n "s/^gpt2|$1|[a-z]*|.*: \([0-9.]*\) ms a step.*/\1/p" "$results"
}

# PyTorch's FSDP2 with CPU offload on the same shape; the best of its ways that come in time.
part_fsdp2() {
    local rc theirs relayed
    [ -z "$simulate" ] || { missing fsdp2-ratio "no device to compare on"; return; }
    room 40
    limited 70 "$python" tools/bench/peer_fsdp2.py --width 1600 --layers 48 --heads 25 --batch 16 --seq 1024 --seconds 40
    rc=$?
    theirs=$(sed -n 's/.*"ms": \([0-9.]*\).*/\1/p' "$work/said" | sort -g | head -n 1)
    relayed=$(row_ms gpt2-fp32)
    if [ -z "$theirs" ]; then
        missing fsdp2-ratio "tools/bench/peer_fsdp2.py: $(why $rc 70)"
        return
    fi
    fact fsdp2 "$(grep '^{' "$work/said" | paste -sd ' '); measured 987 ms on an H100"
    if [ -z "$relayed" ]; then
        missing fsdp2-ratio "FSDP2 takes $theirs ms, and gpt2-fp32 was not measured in this call"
    else
        measured fsdp2-ratio "$(ratio "$theirs" "$relayed")" 1.0 "$relayed ms a step in fp32, FSDP2 $theirs ms; with bf16 \
contributions $(row_ms gpt2-bf16), with 16-bit moments $(row_ms gpt2-moments), without masters $(row_ms gpt2-masterless) ms"
    fi
}

# qwen LAYERS WIDTH HEADS KV INNER VOCABULARY SEQ: the shape of one of them
qwen() {
    vocabulary=$6 kv=$4 headwidth=128 inner=$5 tied=false
    [ -z "$simulate" ] || kv=1 headwidth=8 inner=32
    shape "$2" "$1" "$3" "$7"
    eps=$(programs)/eps
    take_cudnn
}

# MegaTrain's own run (arXiv:2604.05091): 5,960 tokens/s, 272 TFLOP/s counting padded tokens, without an fp32 master.
part_qwen25() {
    config=print_qwen2_config
    qwen 28 3584 28 4 18944 152064 1024
    watch_clocks
    fact qwen25-published "MegaTrain on an H200: 5,960 tokens/s, 272 TFLOP/s, padded tokens counted, no fp32 master"
    row qwen25-fp32 72 3 161792 13829 20224 "${exact[@]}" --grad-dtype bf16 --moments fp32 --master fp32
    row qwen25-moments 52 2 161792 13829 20224 "${exact[@]}" --grad-dtype bf16 --moments bf16 --master fp32
    watch_clocks_end
}

# The first modern family that runs whole.
part_qwen8b() {
    config=print_qwen3_config
    qwen 36 4096 32 8 12288 151936 4096
    watch_clocks
    row qwen8b-16k 52 5 16384 2816 3239 "${exact[@]}" --grad-dtype bf16 --moments bf16 --master fp32
    watch_clocks_end
}

# Which attention to use: rows of 4 Ki tokens, and one of 32 Ki whose gradient is ours or cuDNN's ordered one.
part_lengths() {
    config=print_qwen3_config
    qwen 36 4096 32 8 12288 151936 4096
    watch_clocks
    row qwen8b-32k 58 5 32768 3275 3767 "${exact[@]}" --grad-dtype bf16 --moments bf16 --master fp32
    qwen 36 4096 32 8 12288 151936 32768
    row qwen8b-row-own 68 4 32768 7066 8126 "${exact[@]}" --grad-dtype bf16 --moments bf16 --master fp32 --attention own
    without="--attention ordered: " # a device's cuDNN may lack it
    row qwen8b-row-cudnn 62 4 32768 5141 5913 "${exact[@]}" --grad-dtype bf16 --moments bf16 --master fp32 --attention ordered
    watch_clocks_end
}
