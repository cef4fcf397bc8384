#!/usr/bin/env bash
# T5 on SST-2 as text: a small one learns to restore spans of the sentences of SST-2 and of Multi30k, and is then tuned to
# write "positive" or "negative" behind a sentence, exactly and in each approximate form (eps train --approximate), from each
# seed. Prints accuracy on the dev set, what is written being the whole word, and held-out loss of each seed; and the
# difference to exact paired by seed, with its interval.
#
# usage: tools/bench/t5.sh [options]      defaults in brackets
#   --keep DIR            where the runs stay: what is there goes on, what is done is not run again; needed
#   --forms "F ..." ["wta=0.3 coded=8"]   of --approximate
#   --data DIR            needed; of sst2/{train,dev}.tsv.gz and multi30k/train.en.gz
#   --vocabulary N [4000] --width N [256] --layers N [2] --heads N [4]   of the T5, which has as many layers on both sides
#   --tokens N [10000000] of text, to learn spans from; --lora SPEC: tune adapters
#   --epochs N [3] --batch N [32] --lr X [1e-3] --seeds N [3]   of the tuning
#   --device NAME [cpu]   of the runs; --memory SIZE []   of it for each; --jobs N [1]   runs at once
#   --python PATH [/usr/bin/python3]  a Python with tokenizers, for the vocabulary
#   --finished FILE [tools/bench/results/t5.jsonl]   lines of finished seeds, from which it goes on
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

keep='' forms='wta=0.3 coded=8' data='' vocabulary=4000 width=256 layers=2 heads=4 tokens=10000000 lora=''
epochs=3 batch=32 lr=1e-3 seeds=3 python=/usr/bin/python3 bin=build/bin
take_options "finished keep forms data device memory jobs vocabulary width layers heads tokens lora epochs batch lr seeds python bin" "$@"
need_programs "$bin"
[ -n "$keep" ] || misuse "--keep is needed: a directory for the runs"
need_sst2
need_python "$python" tokenizers
mkdir -p "$keep/t5"

# learn_vocabulary: Unigram as T5 has it, with 100 sentinels at the end; prints how many tokens it has
learn_vocabulary() {
    "$python" - "$keep/text.txt" "$keep/t5/tokenizer.json" "$vocabulary" <<'PYTHON'
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
text, out, vocabulary = sys.argv[1:]
tokenizer = Tokenizer(models.Unigram())
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
tokenizer.decoder = decoders.Metaspace()
tokenizer.train([text], trainers.UnigramTrainer(vocab_size=int(vocabulary) - 100, special_tokens=["<pad>", "</s>", "<unk>"],
                                                unk_token="<unk>", show_progress=False))
tokenizer.add_special_tokens([f"<extra_id_{i}>" for i in reversed(range(100))])
tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
tokenizer.save(out)
print(tokenizer.get_vocab_size())
PYTHON
}

# put_pairs PART: its sentences as sources, its labels as words
put_pairs() {
    zcat "$data/sst2/$1.tsv.gz" | "$python" -c '
import json
import sys
for line in list(sys.stdin)[1:]:
    sentence, label = line.rstrip("\n").split("\t")
    print(json.dumps({"source": "sst2 sentence: " + sentence.strip(), "target": ("negative", "positive")[int(label)]}))
' >"$keep/$1.jsonl"
}

# score FORM SEED: "accuracy loss" of a tuning on the dev set
score() {
    local out=$keep/$1-$2 options=()
    [ "$1" = exact ] || options=(--approximate "$1")
    [ -z "$lora" ] || options+=(--lora "$lora")
    train_once "$out" --keep 1 --model "$keep/base/latest" --data "$keep/train.jsonl" --eval-data "$keep/dev.jsonl" \
        --epochs "$epochs" --batch "$batch" --lr "$lr" --seed "$2" "${options[@]}"
    if [ ! -e "$out.score" ]; then
        on_device eval --model "$out/latest" --data "$keep/dev.jsonl" --bleu --predictions "$out.words" >"$out.log"
        evaluate "$out" --data "$keep/dev.jsonl"
    fi
    echo "$(paste "$out.words" "$keep/dev.words" | awk -F '\t' '{ n += $1 == $2 } END { print n / NR }') $(field loss <"$out.score")"
}

# prepare: pairs, the vocabulary, and the base that is tuned
prepare() {
    [ ! -e "$keep/base.done" ] || return 0
    { zcat "$data/sst2/train.tsv.gz" | tail -n +2 | cut -f 1; zcat "$data/multi30k/train.en.gz"; } >"$keep/text.txt"
    for part in train dev; do put_pairs $part; done
    sed 's/.*"target": "\(.*\)"}/\1/' "$keep/dev.jsonl" >"$keep/dev.words"
    [ -e "$keep/t5/tokenizer.json" ] || learn_vocabulary >"$keep/vocabulary"
    echo '{"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}' >"$keep/t5/tokenizer_config.json"
    cat >"$keep/t5/config.json" <<JSON
{"model_type": "t5", "d_model": $width, "d_kv": $((width / heads)), "d_ff": $((4 * width)), "num_layers": $layers,
 "num_heads": $heads, "vocab_size": $(cat "$keep/vocabulary"), "dropout_rate": 0.1, "is_encoder_decoder": true,
 "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "feed_forward_proj": "relu"}
JSON
    train_once "$keep/base" --keep 1 --model "$keep/t5/config.json" --data "$keep/text.txt" --mask-fraction 0.15 --seq 160 \
        --source-seq 128 --batch 8 --lr 1e-3 --steps $((tokens / 1200)) --seed 1
}

echo "T5 of $layers + $layers layers of $width, $tokens tokens with spans, then SST-2, $epochs epochs, $seeds seeds${lora:+, LoRA $lora}"
setting="T5 of $layers + $layers layers of $width, $heads heads, $vocabulary pieces, $tokens tokens; SST-2, $epochs epochs of $batch"
setting+=" rows at $lr${lora:+, LoRA $lora}"
compare_forms
