#!/usr/bin/env bash
# Bytes that blocks keep from forward to backward, as eps plan counts them: exact, with all made again that can be; sampled
# (WTA-CRS, arXiv 2305.15265); sampled and in 8 bits. Beside them what PyTorch's autograd saves of the same blocks, by hand,
# in fp32, with attention that saves no scores:
#   bert, gpt2  15 widths a token, log-sum-exps and the norms' statistics: norms 2, qkv 3, attended 1, residual 1, u 4, gelu 4
#   t5, of a pair of tokens: encoder norms 2, qkv 3, attended 1, residual 1, relu 4, dropout 4: 15; decoder 15, and cross
#   attention's norm, q, k and v of the source, attended, residual: 21
# For T5 also against the published baseline, which saves scores as well: of each head and key the probability and the
# dropped one, and a byte of mask; masks of all other dropouts; and both blocks' inputs, as eps does (`stash`).
#
# usage: tools/bench/kept.sh [--bin DIR [build/bin]]
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

bin=build/bin
take_options "bin" "$@"
need_programs "$bin"
make_work

width=768 heads=12 layers=12 rows=32 tokens=128
dropout='"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1'
cat >"$work/bert.json" <<JSON
{"model_type": "bert", "vocab_size": 30522, "hidden_size": $width, "num_hidden_layers": $layers, "num_attention_heads": $heads,
 "intermediate_size": $((4 * width)), "max_position_embeddings": 512, "type_vocab_size": 2, $dropout}
JSON
cat >"$work/t5.json" <<JSON
{"model_type": "t5", "d_model": $width, "d_kv": 64, "d_ff": $((4 * width)), "num_layers": $layers, "num_heads": $heads,
 "vocab_size": 32128, "dropout_rate": 0.1, "is_encoder_decoder": true, "decoder_start_token_id": 0, "eos_token_id": 1,
 "feed_forward_proj": "relu"}
JSON

# kept CATEGORY MODEL OPTION...: bytes
kept() {
    local category=$1 model=$2 seq=()
    shift 2
    [ "$model" != "$work/t5.json" ] || seq=(--source-seq $tokens)
    "$bin/eps" plan --json --model "$model" --seq $((${#seq[@]} ? 2 * tokens : tokens)) "${seq[@]}" --batch $rows --microbatch $rows \
        --device-mem 64GiB --host-mem 64GiB --device cpu "$@" | planned "$category"
}

# line NAME SAVED BYTES: a ratio, too
line() {
    awk -v n="$1" -v s="$2" -v b="$3" 'BEGIN { printf "  %-28s %14.0f bytes: %.2f x less\n", n, b, s / b }'
}

all=$((rows * tokens * layers * 4))
for model in bert gpt2 t5; do
    numbers=$((15 * width + heads + 4))
    [ $model != t5 ] || numbers=$((36 * width + 3 * heads + 5))
    saved=$((all * numbers)) path=$work/$model.json
    [ $model != gpt2 ] || path=gpt2
    echo "$model, $layers layers of $width, $rows x $tokens tokens: $saved bytes saved"
    for lora in '' rank=32,alpha=32,targets=q,k,v; do
        [ -z "$lora" ] || [ $model = t5 ] || continue
        adapters=() name=${lora:+, LoRA}
        [ -z "$lora" ] || adapters=(--lora "$lora")
        line "made again, exactly$name" $saved "$(kept kept "$path" "${adapters[@]}")"
        for form in wta=0.3 wta=0.1 wta=0.3,coded=8 wta=0.1,coded=8; do
            line "$form$name" $saved "$(kept kept "$path" --approximate $form "${adapters[@]}")"
        done
    done
done

# Masks in bytes: encoder's attended, inner and result; decoder's, and what cross attention gave.
scores=$((3 * heads * tokens * 9)) masks=$((6 * width + 7 * width))
eager=$((rows * tokens * layers * (4 * (38 * width) + scores + masks)))
echo "t5 with scores, masks and inputs: $eager bytes saved; eps with LoRA and its inputs (stash)"
for form in wta=1 wta=0.1 wta=0.1,coded=8; do
    options=(--lora rank=32,alpha=32,targets=q,k,v --approximate $form)
    line $form $eager $(($(kept kept "$work/t5.json" "${options[@]}") + $(kept stash "$work/t5.json" "${options[@]}")))
done
