#!/usr/bin/env bash
# Predictions of eps plan --timeline for an H200 on several hosts: the table in tools/bench/README.md. Needs no GPU.
#
# The GPU's figures are those of eps's built-in profile: three quarters of the datasheet. On the host, all cores but two run
# the optimizer. Each core moves --core GB/s, and all together at most --memory GB/s, which they share with copies over the
# link. AdamW in fp32 moves 28 bytes per parameter.
#
# usage: tools/bench/timeline.sh [options]      defaults in brackets
#   --cores LIST [16 72]          of the host
#   --memory LIST [80 120 180]    GB/s of the host's memory
#   --core N [12]                 GB/s of one core
#   --products N [740]            TFLOP/s of large matrix products in bf16
#   --mem SIZE [135GiB]           of the device
#   --seq N [4096]                tokens per sequence
#   --bin DIR [build/bin]         where eps is
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

cores="16 72" memory="80 120 180" core=12 products=740 mem=135GiB seq=4096 bin=build/bin
take_options "cores memory core products mem seq bin" "$@"
need_programs "$bin"

make_work
export XDG_CACHE_HOME=$work
mkdir "$work/eps"

model() { # NAME LAYERS WIDTH HEADS
    printf '{"model_type": "gpt2", "vocab_size": 50257, "n_positions": %d, "n_layer": %d, "n_embd": %d, "n_head": %d,
"n_inner": null, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "attn_pdrop": 0,
"embd_pdrop": 0, "resid_pdrop": 0, "scale_attn_weights": true}\n' "$seq" "$2" "$3" "$4" >"$work/$1.json"
}
model 7B 32 4096 32
model 32B 64 6400 50
model 70B 80 8448 66

profile() { # CORES GB/S: as proto/plan/time/profile.c has an H200
    awk -v cores="$1" -v memory="$2" -v core="$core" -v products="$products" 'BEGIN {
        team = (cores - 2) * core; rate = team < memory ? team : memory
        printf "{\"device\": \"cuda\", \"matmul_flops\": {"
        printf "\"fp32\": {\"64\": 15e12, \"512\": 40e12, \"4096\": 50e12, \"32768\": 50e12}, "
        printf "\"bf16\": {\"64\": 60e12, \"512\": 400e12, \"4096\": %se12, \"32768\": %se12}}, ", products, products
        printf "\"attention_flops\": {\"forward\": {\"fp32\": 20e12, \"bf16\": 440e12}, "
        printf "\"backward\": {\"fp32\": 15e12, \"bf16\": 330e12}}, "
        printf "\"link_bytes_per_s\": 48e9, \"memory_bytes_per_s\": 3.6e12, "
        printf "\"update_parameters_per_s\": %.6g, \"host_bytes_per_s\": %.6g}\n", rate * 1e9 / 28, memory * 1e9
    }' >"$work/eps/profile-cuda.json"
}

# TFLOP/s, the bottleneck, and the share of the step in which the device waits.
cell() { # JSON
    awk -v line="$1" '
        function value(key) { match(line, "\"" key "\": [^,}]+"); return substr(line, RSTART + length(key) + 4) }
        function word(text) { sub(/^"/, "", text); sub(/".*/, "", text); return text }
        BEGIN {
            printf " %.0f, %s, %.0f %% |", value("tflops"), word(value("binds")),
                100 * value("device_waits_ms") / value("step_ms")
        }'
}

printf '| parameters, tokens a step | cores |'
for gb in $memory; do printf ' %s GB/s |' "$gb"; done
printf '\n|---|---|'
for gb in $memory; do printf -- '---|'; done
echo
for each in "7B 1" "7B 2" "7B 8" "7B 32" "32B 8" "32B 32" "70B 8" "70B 32"; do
    read -r name batch <<<"$each"
    for n in $cores; do
        printf '| %s, %d Ki | %s |' "$name" $((batch * seq / 1024)) "$n"
        for gb in $memory; do
            profile "$n" "$gb"
            cell "$("$bin/eps" plan --timeline --json --model "$work/$name.json" --device cuda --device-mem "$mem" \
                --host-mem 2000GiB --grad-dtype bf16 --batch "$batch" --seq "$seq")"
        done
        echo
    done
done
