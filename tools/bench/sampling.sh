#!/usr/bin/env bash
# Gradients from a sample of the tokens (WTA-CRS, arXiv 2305.15265: eps train --approximate) beside exact ones: a step's time,
# with activations kept; and accuracy. For accuracy a small BERT learns the sentences of SST-2 and of Multi30k, masked, and is
# then tuned on SST-2, exactly and in each approximate form, from each seed. Prints accuracy on the dev set and held-out loss
# of each seed, and the difference to exact paired by seed, with its interval.
#
# usage: tools/bench/sampling.sh [options]      defaults in brackets
#   --what time|accuracy|all [all]
#   --keep DIR            where the runs stay: what is there goes on, what is done is not run again. Needed for accuracy
#   --forms "F ..." ["wta=0.3 wta=0.3,rule=variance wta=0.1"]   of --approximate
#   --data DIR            needed; of sst2/{train,dev}.tsv.gz and multi30k/train.en.gz
#   --vocabulary N [4000] --width N [256] --layers N [4] --heads N [4]   of the BERT; of the time's model --heads too
#   --tokens N [10000000] masked ones to learn from; --epochs N [3] --batch N [32] --lr X [2e-4] --seeds N [3] of the tuning
#   --device NAME [cpu]   of accuracy's runs; --memory SIZE []   of it for each; --jobs N [1]   runs at once
#   --lora OPTIONS []     the tuning trains adapters with these options, rank=16 for example, and nothing else but the head
#   --widths "N ..." [256 512 768]   of the time's models, of 4 layers, in steps of 2,048 tokens
#   --seq N [128]         of these tokens, those of a row
#   --rounds N [5]        of times, each runs all forms once
#   --python PATH [/usr/bin/python3]  a Python with tokenizers, for the vocabulary
#   --finished FILE [tools/bench/results/sampling.jsonl]   lines of finished seeds, from which it goes on
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

what=all keep='' forms='wta=0.3 wta=0.3,rule=variance wta=0.1' data='' vocabulary=4000 width=256 layers=4 heads=4
tokens=10000000 epochs=3 batch=32 lr=2e-4 seeds=3 lora='' widths='256 512 768' seq=128 rounds=5 python=/usr/bin/python3 bin=build/bin
take_options "finished what keep forms data device memory jobs vocabulary width layers heads tokens epochs batch lr seeds lora widths seq
    rounds python bin" "$@"
need_programs "$bin"
case $what in time | accuracy | all) ;; *) misuse "--what $what is none of time, accuracy, all" ;; esac
asks() { [ "$what" = all ] || [ "$what" = "$1" ]; }
[ -z "$lora" ] || arm=lora-
[ -n "$keep" ] || ! asks accuracy || misuse "--keep is needed: a directory for the runs"

# learn_vocabulary FILE DIR: of a lower-case WordPiece, and the tokenizer of a BERT
learn_vocabulary() {
    "$python" - "$1" "$2" "$vocabulary" <<'PYTHON'
import sys
from tokenizers import BertWordPieceTokenizer
text, out, vocabulary = sys.argv[1:]
tokenizer = BertWordPieceTokenizer(lowercase=True)
tokenizer.train([text], vocab_size=int(vocabulary), show_progress=False)
tokenizer.post_processor = __import__("tokenizers").processors.BertProcessing(
    ("[SEP]", tokenizer.token_to_id("[SEP]")), ("[CLS]", tokenizer.token_to_id("[CLS]")))
tokenizer.save(out + "/tokenizer.json")
print(tokenizer.get_vocab_size())
PYTHON
}

# score FORM SEED: "accuracy loss" of a tuning on the dev set
score() {
    local out=$keep/$arm$1-$2 options=()
    [ "$1" = exact ] || options+=(--approximate "$1")
    [ -z "$lora" ] || options+=(--lora "$lora")
    train_once "$out" --keep 1 --model "$keep/base/latest" --task classify --data "$keep/train.tsv" --eval-data "$keep/dev.tsv" \
        --epochs "$epochs" --batch "$batch" --lr "$lr" --seed "$2" "${options[@]}"
    evaluate "$out" --data "$keep/dev.tsv"
    echo "$(field accuracy <"$out.score") $(field loss <"$out.score")"
}

# prepare: the vocabulary, and the base that is tuned
prepare() {
    [ ! -e "$keep/base.done" ] || return 0
    zcat "$data/sst2/train.tsv.gz" >"$keep/train.tsv"
    zcat "$data/sst2/dev.tsv.gz" >"$keep/dev.tsv"
    { tail -n +2 "$keep/train.tsv" | cut -f 1; zcat "$data/multi30k/train.en.gz"; } >"$keep/text.txt"
    need_python "$python" tokenizers
    [ -e "$keep/bert/tokenizer.json" ] || learn_vocabulary "$keep/text.txt" "$keep/bert" >"$keep/vocabulary"
    cat >"$keep/bert/config.json" <<JSON
{"model_type": "bert", "vocab_size": $(cat "$keep/vocabulary"), "hidden_size": $width, "num_hidden_layers": $layers,
 "num_attention_heads": $heads, "intermediate_size": $((4 * width)), "max_position_embeddings": 128,
 "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "type_vocab_size": 2}
JSON
    train_once "$keep/base" --keep 1 --model "$keep/bert/config.json" --data "$keep/text.txt" --seq 128 --batch 8 --lr 3e-4 \
        --steps $((tokens / 1024)) --seed 1
}

if asks accuracy; then
    need_sst2
    mkdir -p "$keep/bert"
    echo "BERT of $layers layers of $width, $tokens masked tokens, then SST-2${lora:+ by LoRA, $lora}, $epochs epochs, $seeds seeds"
    setting="BERT of $layers layers of $width, $heads heads, $vocabulary pieces, $tokens masked tokens; SST-2, $epochs epochs of $batch"
    setting+=" rows at $lr${lora:+, LoRA $lora}"
    compare_forms
fi

if asks time; then
    make_work
    layers=4
    for width in $widths; do
        print_config 256 >"$work/config.json"
        write_text $((2048 * 20 + 1))
        for ((round = 1; round <= rounds; round++)); do
            for form in wta=1 $forms; do
                run_training --model "$work/config.json" --data "$work/data.txt" --eval-data "$work/held_out.txt" --batch $((2048 / seq)) \
                    --seq "$seq" --steps 10 --device cpu --save-every 0 --eval-every 0 --approximate "$form"
                step_times >>"$work/$width-$form"
            done
        done
        for form in $forms; do
            awk -v e="$(median <"$work/$width-wta=1")" -v a="$(median <"$work/$width-$form")" -v f="$form" -v w="$width" 'BEGIN {
                printf "a kept step of width %d: exact %.1f ms, %s %.1f ms: %.3f x faster\n", w, e, f, a, e / a }'
        done
    done
fi
