#!/usr/bin/env bash
# Translation by an encoder-decoder with dynamic convolutions (arXiv:1901.10430), Multi30k from German to English: trained in
# the plain way, and leanly, in the least device memory that its microbatches take. Of each run the mean of the last
# checkpoints is measured on the test set. Prints each arm's planned device memory, its loss and BLEU of each seed, and the
# differences paired by seed, with their intervals.
#
# usage: tools/bench/dynamic_conv.sh [options]      defaults in brackets
#   --keep DIR            where the runs stay: what is there goes on, what is done is not run again; needed
#   --data DIR            needed; of {train,val,test}.{de,en}.gz
#   --vocabulary N [6000] of the BPE that both languages share
#   --width N [128] --layers N [4] --inner N [256] --heads N [4] --kernels "K, ..." ["3, 7, 15, 31"]   one for each layer
#   --batch N [128]       rows of a step, some 4,096 tokens; --steps N [4000] --average N [5] checkpoints
#   --lean "OPTION ..." ["--precision bf16 --moments bf16 --microbatch 8"]   of the lean arm; --arm NAME [lean]: what its runs are
#                         called, so that several can stand beside one plain arm. `--arm exact` is lean in what is exact alone,
#                         in fp32, and stands beside a plain arm of the same rows and microbatches, whose very bits it must have
#   --lr X [2e-3] --seeds N [3]
#   --device NAME [cpu]   of the runs; --memory SIZE []   of it for each; --jobs N [1]   runs at once
#   --python PATH [/usr/bin/python3]  a Python with tokenizers, for the vocabulary
#   --finished FILE [tools/bench/results/dynamic_conv.jsonl]   lines of finished seeds, from which it goes on
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

keep='' data='' vocabulary=6000 width=128 layers=4 inner=256 heads=4 kernels='3, 7, 15, 31' batch=128
steps=4000 average=5 arm=lean lean='--precision bf16 --moments bf16 --microbatch 8' lr=2e-3 seeds=3 python=/usr/bin/python3
bin=build/bin
take_options "finished keep data device memory jobs vocabulary width layers inner heads kernels batch steps average lean arm lr seeds python
    bin" "$@"
need_programs "$bin"
[ -n "$keep" ] || misuse "--keep is needed: a directory for the runs"
for part in train val test; do
    for language in de en; do
        [ -r "$data/$part.$language.gz" ] || misuse "no ${data:-DIR}/$part.$language.gz: give the directory of Multi30k by --data"
    done
done
mkdir -p "$keep/model"
cut=(--seq 128 --source-seq 64 --long cut) plain=plain plain_options=()
[ "$arm" != exact ] || lean='--microbatch 8' plain=plain-8 plain_options=(--microbatch 8 "${cut[@]}")
read -ra lean_options <<<"$lean"

# learn_vocabulary: a BPE of both languages' bytes, whose texts end in </s>
learn_vocabulary() {
    "$python" - "$keep/model/tokenizer.json" "$vocabulary" "$keep"/train.{de,en} <<'PYTHON'
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
out, vocabulary, *texts = sys.argv[1:]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer.train(texts, trainers.BpeTrainer(vocab_size=int(vocabulary), special_tokens=["<s>", "<pad>", "</s>"],
                                           initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
tokenizer.save(out)
PYTHON
}

# put_pairs PART: its lines as sources and targets
put_pairs() {
    "$python" - "$keep" "$1" <<'PYTHON'
import json
import sys
keep, part = sys.argv[1:]
source, target = (open(f"{keep}/{part}.{language}", encoding="utf-8") for language in ("de", "en"))
with open(f"{keep}/{part}.jsonl", "w", encoding="utf-8") as out:
    for pair in zip(source, target):
        out.write(json.dumps({"source": pair[0].strip(), "target": pair[1].strip()}) + "\n")
PYTHON
}

# train OUT OPTION...: a run of the protocol in OUT, unless it is done
train() {
    train_once "$1" --model "$keep/model/config.json" --data "$keep/train.jsonl" --eval-data "$keep/val.jsonl" \
        --batch "$batch" --steps "$steps" --lr "$lr" --schedule inverse-sqrt --warmup $((steps / 10)) --betas 0.9,0.98 \
        --label-smoothing 0.1 --save-every $((steps / 20)) --keep "$average" "${@:2}"
}

# score ARM SEED: "loss BLEU" of the mean of a run's last checkpoints on the test set
score() {
    local out=$keep/${1%%: *}-$2
    if [ "$1" = "$plain" ]; then
        train "$out" --seed "$2" "${plain_options[@]}"
    else
        train "$out" --seed "$2" "${lean_options[@]}" "${cut[@]}" --device-mem "$least"
    fi
    measure_mean "$out"
}

# measure_mean OUT: likewise
measure_mean() {
    [ -e "$1.mean" ] || "$bin/eps" export --model "$1" --average "$average" --out "$1.mean" >>"$1.log"
    if [ ! -e "$1.score" ]; then
        on_device eval --model "$1.mean" --data "$keep/test.jsonl" >"$1.part"
        on_device eval --model "$1.mean" --data "$keep/test.jsonl" --bleu --predictions "$1.targets" >>"$1.part"
        mv "$1.part" "$1.score"
    fi
    awk '/^loss/ { loss = $2 } tolower($0) ~ /bleu/ { for (i = 1; i < NF; i++) if (tolower($i) ~ /^bleu/) bleu = $(i + 1) }
        END { print loss, bleu }' "$1.score"
}

# prepare: pairs, and the vocabulary
prepare() {
    local part language
    for part in train val test; do
        for language in de en; do
            [ -e "$keep/$part.$language" ] || zcat "$data/$part.$language.gz" >"$keep/$part.$language"
        done
        [ -e "$keep/$part.jsonl" ] || put_pairs "$part"
    done
    if [ ! -e "$keep/model/tokenizer.json" ]; then
        need_python "$python" tokenizers
        learn_vocabulary
    fi
}

print_dynamic_conv_config "$vocabulary" >"$keep/model/config.json"
[[ " $lean " == *' --precision '* ]] || lean_options+=(--precision fp32)
least=$("$bin/eps" plan --device "$device" --model "$keep/model/config.json" --batch "$batch" --seq 128 "${lean_options[@]}" --minimum)

figures='loss bleu' setting="dynamic convolutions, $layers + $layers layers of $width, $vocabulary pieces, $steps updates of $batch"
setting+=" rows at $lr, mean of $average"
lean_arm="$arm: $lean"
[ "$arm" != exact ] || finished=$keep/exact.jsonl # beside the weights, which are compared, too
measure_all "$plain" "$lean_arm"
paste -d ' ' <(figures_of "$plain" "$plain" "$lean_arm") <(figures_of "$lean_arm" "$plain" "$lean_arm") >"$keep/$arm.scores"
for ((seed = 1; seed <= seeds; seed++)); do
    [ "$arm" != exact ] || cmp "$keep/$plain-$seed.mean/model.safetensors" "$keep/$arm-$seed.mean/model.safetensors"
done
[ ! -e "$keep/$arm-1.log" ] || grep -h '^memory' "$keep/$plain-1.log" "$keep/$arm-1.log"
arm_scores() { awk -v i="$1" '{ printf " %s/%s", $i, $(i + 1) }' "$keep/$arm.scores"; }
echo "loss/BLEU: $plain$(arm_scores 1); $arm$(arm_scores 3)"
echo "difference of losses $(difference 3 1 <"$keep/$arm.scores"); of BLEU $(difference 4 2 <"$keep/$arm.scores")"
[ "$arm" != exact ] || echo "weights: the same bits in each of $seeds seeds"
