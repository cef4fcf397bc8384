# shellcheck shell=bash
# What most models of today are made of, in the shape of Qwen3-8B: heads of 128 that share keys, norms of heads, rotary
# positions, gated units, 4,096 tokens. Attention alone, whole steps of two blocks, and a small model beside the CPU.
# shellcheck disable=SC2154,SC2034 # their options and work folder come from outside; print_qwen3_config reads shapes

. tools/gpu/measure.sh
. tools/gpu/relay.sh
. tools/gpu/training.sh
cut_off() {
    cut_off_bench
    cut_off_steps
}

qwen3_attention() {
    bench qwen3 20 || return 0
    agreement qwen3-agreement 0.02 "attention with shared keys and with repeated ones"
    repeats qwen3-repeat "of it"
    verdict qwen3-forward 300 grouped-forward
    verdict qwen3-backward 200 grouped-backward
}

# Losses in bf16 on the device beside the CPU's in fp32.
qwen3_losses() {
    eps=$(programs)/eps device=cuda:0 seconds_each=15 batch=8 steps=20 kv=1
    width=256 layers=2 heads=2 headwidth=128 inner=512 seq=256
    [ -z "$simulate" ] || width=64 headwidth=32 inner=64 seq=16 steps=4 batch=2
    cat README.md client/README.md eps/README.md >"$work/text.txt"
    head -c 4000 README.md >"$work/held.txt"
    print_qwen3_config 256 >"$work/config.json"
    trained qwen3-cpu "a small Qwen 3 on the CPU" --device cpu --precision fp32 --save-every 0 || return 0
    trained qwen3 "the same in bf16 on the device" --device "$device" --precision bf16 --save-every 0 &&
        near qwen3-losses qwen3 qwen3-cpu 0.02 "losses of $steps steps in bf16 beside the CPU's in fp32 (8 bits of each number)"
}

# Steps of 64 Ki tokens, which computing binds, beside the time that a plan by this machine's profile gives them.
qwen3_steps() {
    local timeline planned ms

    config=print_qwen3_config kv=8 headwidth=128 inner=12288
    [ -z "$simulate" ] || kv=1 headwidth=8 inner=32
    begin 4096 2 32 4096
    steps qwen3-runs 30 6 65536 --trace "$work/qwen3.trace" || return 0
    ms=$(step_ms qwen3-runs)
    fact qwen3-rate "2 blocks of Qwen3-8B, 64 Ki tokens: $(rates qwen3-runs 65536)"
    timeline=$(plan --batch "$(rows 65536)" --timeline --json)
    planned=$(sed -n 's/.*"step_ms": *\([0-9.]*\).*/\1/p' <<<"$timeline")
    if [ -z "$simulate" ] && [[ $timeline != *'"measured": true'* ]]; then
        missing qwen3-plan "$ms ms a step; planned by the rates of another machine, $planned ms"
        return
    fi
    measured qwen3-plan "$(awk -v a="$planned" -v b="$ms" 'BEGIN { printf "%.3f", (a < b ? a / b : b / a) }')" 0.85 \
        "$ms ms a step, planned $planned ms"
}

part_qwen3() {
    take_cudnn
    qwen3_attention
    qwen3_losses
    qwen3_steps
}
