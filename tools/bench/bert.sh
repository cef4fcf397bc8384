#!/usr/bin/env bash
# A step of BERT-Large with batches from 2 to 256, as the rows of a table: device bytes and sequences per second of
# `eps train` and of `transformers` on PyTorch, which both train masked tokens with AdamW. Every block's activations are
# recomputed on both sides, ours in one budget for all batches; then they are kept on both sides. What does not fit this
# machine's memory says so. The CPU is the device, so PyTorch's bytes are those of weights, gradients, moments and
# activations; ours has the first three on the host, whose bytes are printed, too.
#
# usage: tools/bench/bert.sh [options]      defaults in brackets
#   --layers N [24] --width N [1024] --heads N [16] --inner N [4096] --vocabulary N [30522] --seq N [128]
#   --batches LIST ["2 8 32 128 256"]
#   --most N [256]            larger batches are planned and not run
#   --modes LIST ["recomputed kept"]
#   --steps N [2]             the last one is timed
#   --threads N [all]         for both sides
#   --python PATH [/usr/bin/python3]  a Python with torch and transformers
#   --bin DIR [build/bin]     where eps, epsd and eps-worker are
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

layers=24 width=1024 heads=16 inner=4096 vocabulary=30522 seq=128 batches="2 8 32 128 256" most=256
modes="recomputed kept" steps=2 threads=$(nproc) python=/usr/bin/python3 bin=build/bin
take_options "layers width heads inner vocabulary seq batches most modes steps threads python bin" "$@"
need_programs "$bin"
need_python "$python" torch transformers

make_work
mkdir "$work/model"
cat >"$work/model/config.json" <<JSON
{"model_type": "bert", "hidden_size": $width, "num_hidden_layers": $layers, "num_attention_heads": $heads,
 "intermediate_size": $inner, "vocab_size": $vocabulary, "max_position_embeddings": 512, "type_vocab_size": 2,
 "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
JSON
cat >"$work/model/tokenizer.json" <<'JSON'
{"version": "1.0", "added_tokens": [{"id": 1, "content": "[MASK]", "special": true, "single_word": false,
 "lstrip": false, "rstrip": false, "normalized": false}], "normalizer": null,
 "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null, "decoder": {"type": "WordPiece", "prefix": "##",
 "cleanup": true}, "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
 "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "[MASK]": 1}}}
JSON
echo '{"mask_token": "[MASK]", "unk_token": "[UNK]"}' >"$work/model/tokenizer_config.json"

random_tokens "$seq" 2 >"$work/held_out.bin"

# ours BATCH BUDGET: the columns of our side
ours() {
    local budget=$2 device host seconds
    if [ "$1" -gt "$most" ]; then
        echo "$("$bin/eps" plan "${options[@]}" --device-mem "$budget" --json |
            sed -n 's/{"host": {"current": \([0-9]*\).*"workers": \[{"current": \([0-9]*\).*/\2 \1/p') (planned)"
        return
    fi
    random_tokens $((steps * $1 * seq)) 2 >"$work/data.bin"
    OMP_NUM_THREADS=$threads run_training "${options[@]}" --data "$work/data.bin" --eval-data "$work/held_out.bin" \
        --steps "$steps" --save-every 0 --eval-every 0 --device-mem "$budget"
    tail -n 1 "$work/run/metrics.jsonl" >"$work/last"
    device=$(sed -n 's/.*"device_peak_bytes": *\([0-9]*\).*/\1/p' "$work/last")
    host=$(sed -n 's/.*"host_bytes": *\([0-9]*\).*/\1/p' "$work/last")
    seconds=$(sed -n 's/.*"tokens_per_s": *\([0-9.]*\).*/\1/p' "$work/last")
    echo "$device $host $(awk -v t="$seconds" -v s="$seq" 'BEGIN { printf "%.3f", t / s }')"
}

# peer BATCH yes|no: the columns of PyTorch's side, the second argument for activation checkpointing
peer() {
    [ "$1" -le "$most" ] || { echo "- -"; return; }
    local what
    for what in memory speed; do
        "$python" tools/bench/peer_bert.py "$what" --config "$work/model/config.json" --batch "$1" --seq "$seq" \
            --steps "$steps" --threads "$threads" --checkpoint "$2" >"$work/$what" 2>"$work/log" ||
            { tail -n 3 "$work/log" >&2; exit 1; }
        if grep -q '"fits": false' "$work/$what"; then
            echo "does-not-fit -"
            return
        fi
    done
    echo "$(field bytes <"$work/memory") $(field sequences_per_s <"$work/speed")"
}

# use_batch BATCH: sets the options that eps plan and eps train share
use_batch() { options=(--model "$work/model/config.json" --batch "$1" --seq "$seq" --precision fp32); }

# The largest budget in which every block recomputes even for the first batch, or what the last one needs.
one_budget() {
    local most least
    use_batch "${batches%% *}"
    most=$(recomputing_budget)
    use_batch "${batches##* }"
    least=$("$bin/eps" plan "${options[@]}" --minimum)
    echo $((most > least ? most : least))
}

budget=$(one_budget)
echo "BERT, $layers layers of $width, sequences of $seq tokens, fp32, $threads threads," \
    "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1);" \
    "$("$python" -c 'import torch, transformers as t; print("PyTorch", torch.__version__, "transformers", t.__version__)');" \
    "recomputed: --device-mem $budget"
echo "| batch | activations | eps, device | host | sequences/s | PyTorch | sequences/s | ratio |"
echo "|---|---|---|---|---|---|---|---|"
for mode in $modes; do
    for batch in $batches; do
        use_batch "$batch"
        if [ "$mode" = recomputed ]; then
            held=$budget checkpoint=yes
        else
            held=$(held_with_any_memory) checkpoint=no
        fi
        name="kept in $(kept "$held") of $layers blocks"
        mine=$(ours "$batch" "$held")
        theirs=$(peer "$batch" "$checkpoint")
        read -r device host speed <<<"$mine"
        read -r bytes other <<<"$theirs"
        ratio=$(awk -v a="$speed" -v b="$other" 'BEGIN { if (a + 0 > 0 && b + 0 > 0) printf "%.2f", a / b }')
        case $bytes in
        -) ;;
        does-not-fit) bytes="does not fit" ;;
        *) bytes=$(mib "$bytes") ;;
        esac
        echo "| $batch | $name | $(mib "$device") | $(mib "$host") | $speed | $bytes | $other | $ratio |"
    done
done
