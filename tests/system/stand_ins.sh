# shellcheck shell=bash
# What the commands of README.md and the guides take for granted: models that `hf` downloads, and a reader's data. Small ones
# stand in for them: models of the families that the pages name, with tokenizers of the fixtures and weights that eps draws.
# Sourced by test_readme.sh; $source is the tree, $build a build.

# stand_in_models FOLDER: a model in FOLDER/ORG/NAME for each that the pages download
stand_in_models() {
    local text=$1/text fixtures=$source/tests/fixtures

    mkdir -p "$1/Qwen/Qwen3-0.6B" "$1/google-bert/bert-base-uncased" "$1/google"
    seq -s ' the quick brown fox ' 2000 >"$text"
    cp "$fixtures/tokenizers/qwen.json" "$1/Qwen/Qwen3-0.6B/tokenizer.json"
    cat >"$1/Qwen/Qwen3-0.6B/config.json" <<'JSON'
{"model_type": "qwen3", "vocab_size": 406, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 4096, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
 "tie_word_embeddings": true, "eos_token_id": 402}
JSON
    cp "$fixtures/tokenizers/bert.json" "$1/google-bert/bert-base-uncased/tokenizer.json"
    cat >"$1/google-bert/bert-base-uncased/config.json" <<'JSON'
{"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 330, "hidden_size": 32, "num_hidden_layers": 2,
 "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 512}
JSON
    for model in Qwen/Qwen3-0.6B google-bert/bert-base-uncased; do
        "$build/bin/eps" train --model "$1/$model/config.json" --data "$text" --steps 1 --batch 1 --seq 32 --device cpu --out "$1/run" &&
            "$build/bin/eps" export --model "$1/run/latest" --out "$1/weights" && cp "$1/weights/model.safetensors" "$1/$model" &&
            rm -r "$1/run" "$1/weights"
    done
    printf '%s' '{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}' >"$1/Qwen/Qwen3-0.6B/chat_template.jinja"
    cp -r "$fixtures/saved_flan" "$1/google/flan-t5-small"
    cp "$fixtures/tokenizers/t5.json" "$1/google/flan-t5-small/tokenizer.json"
}

# stand_in_hf FILE MODELS: the command `hf download NAME --local-dir DIR`, as the pages give it
stand_in_hf() {
    cat >"$1" <<SCRIPT
#!/bin/sh
[ "\$1 \$3" = "download --local-dir" ] && [ -d "$2/\$2" ] || { echo "hf: \$*: the stand-in has no such model" >&2; exit 1; }
mkdir -p "\$4" && cp "$2/\$2"/* "\$4"
SCRIPT
    chmod +x "$1"
}

# stand_in_data: a reader's files, in the current folder
stand_in_data() {
    local i

    seq -s ' the lazy dog jumps over number ' 3000 >notes.txt
    seq -s ' a quick fox runs after number ' 300 >other.txt
    for ((i = 0; i < 40; i++)); do
        echo "{\"messages\": [{\"role\": \"user\", \"content\": \"What is $i?\"}, {\"role\": \"assistant\", \"content\": \"It is $i.\"}]}"
    done >chat.jsonl
    cp chat.jsonl other.jsonl
    for ((i = 0; i < 40; i++)); do
        echo "{\"prompt\": \"Is $i even? \", \"chosen\": \"It is $((i % 2 ? 0 : 1)).\", \"rejected\": \"I do not know $i.\"}"
    done >preferences.jsonl
    { printf 'sentence\tlabel\n'; for ((i = 0; i < 40; i++)); do printf 'a fox %d\tgood\nthe dog %d\tbad\n' $i $i; done; } >train.tsv
    head -n 9 train.tsv >test.tsv
    seq -f 'the house %.0f' 40 >train.en
    seq -f 'das haus %.0f' 40 >train.de
    head -n 4 train.en >test.en
    head -n 4 train.de >test.de
    mkdir -p cifar-10-batches-bin
    stand_in_images 100 >cifar-10-batches-bin/data_batch_1.bin
    stand_in_images 20 >cifar-10-batches-bin/test_batch.bin
}

# stand_in_images N: of CIFAR's form, a label and 3 x 32 x 32 bytes each
stand_in_images() {
    local i

    for ((i = 0; i < $1; i++)); do
        printf '%b' "\\x0$((i % 10))"
        head -c 3072 /dev/zero | tr '\0' "\\$((i % 10))"
    done
}
