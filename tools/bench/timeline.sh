#!/usr/bin/env bash
# Predictions of eps plan --timeline for one GPU, by three sets of assumptions: the tables in tools/bench/README.md. Needs no
# GPU.
#
# The second set is what an H100 with 16 virtual cores was measured to do (proto/plan/time/profile.c, tests/gpu/RECORD.md).
# In each, large products reach --products, attention on each path as much more or less as these do, and the host's memory
# moves --memory GB/s, which optimizer and link share. AdamW in fp32 moves 28 bytes per parameter.
#
# A third table is of cards that nobody has measured: eps plan --card.
#
# usage: tools/bench/timeline.sh [options]      defaults in brackets
#   --products LIST [590 660 740] TFLOP/s of large matrix products in bf16: pessimistic, measured, optimistic
#   --memory LIST [60 64 120]     GB/s of the host's memory: the same
#   --hosts LIST [64 120 250]     GB/s of the host's memory in a second table: of two GPUs, each with a link of its own,
#                                 beside one with half of their rows
#   --mem SIZE [75GiB]            of the device
#   --bin DIR [build/bin]         where eps is
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

products="590 660 740" memory="60 64 120" hosts="64 120 250" mem=75GiB bin=build/bin
take_options "products memory hosts mem bin" "$@"
need_programs "$bin"

make_work
export XDG_CACHE_HOME=$work
mkdir "$work/eps"

gpt2() { # LAYERS WIDTH HEADS
    printf '{"model_type": "gpt2", "vocab_size": 50257, "n_positions": 4096, "n_layer": %d, "n_embd": %d, "n_head": %d,
"activation_function": "gelu_new", "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}\n' "$1" "$2" "$3"
}

# TYPE LAYERS WIDTH INNER HEADS KV HEAD VOCABULARY [MORE]
llama() {
    printf '{"model_type": "%s", "num_hidden_layers": %d, "hidden_size": %d, "intermediate_size": %d, "num_attention_heads": %d,
"num_key_value_heads": %d, "head_dim": %d, "vocab_size": %d, "max_position_embeddings": 131072, "tie_word_embeddings": false%s}\n' \
        "${@:1:8}" "${9-}"
}
gpt2 32 4096 32 >"$work/GPT-2 7B.json"
gpt2 64 6400 50 >"$work/GPT-2 32B.json"
llama qwen3 36 4096 12288 32 8 128 151936 >"$work/Qwen3-8B.json"
llama llama 32 4096 14336 32 8 128 128256 >"$work/Llama 3 8B.json"
llama llama 80 8192 28672 64 8 128 128256 >"$work/Llama 3 70B.json"
llama gemma3_text 62 5376 21504 32 16 128 262208 ', "sliding_window": 1024, "query_pre_attn_scalar": 168' \
    >"$work/Gemma 3 27B.json"
printf '{"model_type": "bert", "num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 4096,
"num_attention_heads": 16, "vocab_size": 30522, "max_position_embeddings": 512, "hidden_dropout_prob": %s,
"attention_probs_dropout_prob": %s}\n' 0 0 >"$work/BERT-Large.json"
sed 's/_prob": 0/_prob": 0.1/g' "$work/BERT-Large.json" >"$work/BERT-Large with dropout.json"

profile() { # PRODUCTS GB/S
    awk -v products="$1" -v memory="$2" 'BEGIN {
        more = products / 660 # as proto/plan/time/profile.c has an H100
        printf "{\"device\": \"cuda\", \"matmul_flops\": {"
        printf "\"fp32\": {\"64\": 3.2e12, \"512\": 28e12, \"4096\": 50e12, \"32768\": 50e12}, "
        printf "\"bf16\": {\"64\": 200e12, \"512\": %.6g, \"4096\": %.6g, \"32768\": %.6g}}, ", 640e12 * more,
            products * 1e12, products * 1e12
        printf "\"attention\": \"scores\", \"link_bytes_per_s\": 53e9, \"memory_bytes_per_s\": 2.6e12, "
        printf "\"update_parameters_per_s\": %.6g, \"host_bytes_per_s\": %.6g}\n", memory * 1e9 / 28, memory * 1e9
    }' >"$work/eps/profile-cuda.json"
}

# timeline MODEL ROWS SEQ [WORKERS]: JSON
timeline() {
    "$bin/eps" plan --timeline --json --model "$work/$1.json" --device cuda --device-mem "$mem" --host-mem 2000GiB \
        --precision bf16 --grad-dtype bf16 --batch "$2" --seq "$3" --workers "${4-1}" --parts "${4-1}"
}

value() { grep -o "\"$1\": [^,}]*" | head -n 1 | sed 's/.*: //; s/"//g'; } # NAME

# TFLOP/s, the bottleneck, and the share of the step in which the device waits
cell() { # JSON
    printf ' %.0f, %s, %.0f %% |' "$(value tflops <<<"$1")" "$(value binds <<<"$1")" \
        "$(awk "BEGIN { print 100 * $(value device_waits_ms <<<"$1") / $(value step_ms <<<"$1") }")"
}

# The path of each kind of attention, its TFLOP/s, and its share of the computing
paths() { # JSON
    grep -o '{"kind": "attention[^}]*}' <<<"$1" | awk '
        function value(key) { match($0, "\"" key "\": [^,}]+"); return substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) }
        {
            path = value("path"); gsub(/"/, "", path)
            all = all sprintf("%s%s%s %.0f, %.0f %%", all ? "; " : "", /backward/ ? "backward " : "", path, value("tflops"),
                100 * value("share"))
        }
        END { print " " all " |" }'
}

read -ra of_products <<<"$products"
read -ra of_memory <<<"$memory"
echo '| model, tokens a step | pessimistic | measured | optimistic | attention, measured |'
echo '|---|---|---|---|---|'
while IFS=: read -r name batch seq; do
    printf '| %s, %d x %d |' "$name" "$batch" "$seq"
    for i in 0 1 2; do
        profile "${of_products[i]}" "${of_memory[i]}"
        told=$(timeline "$name" "$batch" "$seq")
        cell "$told"
        [ $i -ne 1 ] || measured=$told
    done
    paths "$measured"
done <<'ROWS'
GPT-2 7B:8:4096
GPT-2 7B:32:4096
GPT-2 32B:32:4096
Qwen3-8B:8:4096
Qwen3-8B:32:4096
Qwen3-8B:1:32768
Llama 3 8B:8:4096
Llama 3 8B:32:4096
Llama 3 70B:32:4096
Gemma 3 27B:32:4096
BERT-Large:256:512
BERT-Large with dropout:256:512
ROWS

read -ra of_hosts <<<"$hosts"
echo
printf '| model, tokens a step of two GPUs |'
printf ' %s GB/s |' "${of_hosts[@]}"
printf '\n|---|'
printf -- '---|%.0s' "${of_hosts[@]}"
echo
while IFS=: read -r name batch seq; do
    printf '| %s, %d x %d |' "$name" "$((2 * batch))" "$seq"
    for host in "${of_hosts[@]}"; do
        profile "${of_products[1]}" "$host"
        one=$(timeline "$name" "$batch" "$seq") two=$(timeline "$name" "$((2 * batch))" "$seq" 2)
        awk -v one="$(value tflops <<<"$one")" -v two="$(value tflops <<<"$two")" -v binds="$(value binds <<<"$two")" \
            'BEGIN { printf " %.0f, %s, %.2f x |", two, binds, two / one }'
    done
    echo
done <<'ROWS'
GPT-2 7B:8:4096
GPT-2 7B:32:4096
Qwen3-8B:8:4096
Qwen3-8B:32:4096
ROWS

echo
echo '| model, tokens a step | h100, for comparison | rtx-4090 | rtx-5090 |'
echo '|---|---|---|---|'
while IFS=: read -r name batch seq; do
    printf '| %s, %d x %d |' "$name" "$batch" "$seq"
    for card in h100 rtx-4090 rtx-5090; do
        cell "$("$bin/eps" plan --timeline --json --model "$work/$name.json" --card "$card" --host-mem 2000GiB \
            --precision bf16 --grad-dtype bf16 --batch "$batch" --seq "$seq")"
    done
    echo
done <<'ROWS'
GPT-2 7B:8:4096
GPT-2 7B:32:4096
Qwen3-8B:8:4096
Qwen3-8B:32:4096
Llama 3 8B:32:4096
BERT-Large:256:512
ROWS
