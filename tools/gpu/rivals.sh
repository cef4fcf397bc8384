# shellcheck shell=bash
# Published claims of others, on their shapes: L2L's BERT-Large within 16 GB, beside `transformers` under the same cap; and
# WTA-CRS's T5-base, exactly and in the forms that save its memory.
# shellcheck disable=SC2154,SC2034 # their options and work folder come from outside; print_config reads shapes

. tools/gpu/relay.sh

# words SPECIAL...: tokenizer.json of whole words: the special tokens, then w0, w1, ... up to $vocabulary
words() {
    awk -v n="$vocabulary" 'BEGIN {
        printf "{\"version\": \"1.0\", \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"},"
        printf " \"post_processor\": null, \"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true},"
        printf " \"added_tokens\": ["
        for (i = 1; i < ARGC; i++)
            printf "%s{\"id\": %d, \"content\": \"%s\", \"special\": true, \"single_word\": false, \"lstrip\": false, " \
                "\"rstrip\": false, \"normalized\": false}", (i > 1 ? "," : ""), i - 1, ARGV[i]
        printf "], \"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"continuing_subword_prefix\": \"##\","
        printf " \"max_input_chars_per_word\": 100, \"vocab\": {"
        for (i = 1; i < ARGC; i++) printf "\"%s\": %d, ", ARGV[i], i - 1
        for (; i <= n; i++) printf "\"w%d\": %d%s", i - 1, i - 1, (i < n ? ", " : "")
        print "}}}" }' "$@" >"$work/tokenizer.json"
}

# A masked token is drawn anew each time; ids begin behind the special ones.
bert() {
    vocabulary=30522 seq=128 width=1024 layers=24 heads=16
    [ -z "$simulate" ] || vocabulary=300 seq=16 width=16 layers=2 heads=2
    cat >"$work/config.json" <<JSON
{"model_type": "bert", "hidden_size": $width, "num_hidden_layers": $layers, "num_attention_heads": $heads,
 "intermediate_size": $((4 * width)), "vocab_size": $vocabulary, "max_position_embeddings": 512, "type_vocab_size": 2,
 "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
JSON
    words '[UNK]' '[MASK]'
    echo '{"mask_token": "[MASK]", "unk_token": "[UNK]"}' >"$work/tokenizer_config.json"
    random_tokens "$work/tokens.bin" "$vocabulary" $((8 * 256 * 128 + 1)) 2
    head -c $((2 * (seq + 1))) "$work/tokens.bin" >"$work/held.bin"
    eps=$(programs)/eps
    take_cudnn
}

part_bert() {
    local rc ms best rate
    local -a options=(--device-mem "$([ -n "$simulate" ] && echo 2GiB || echo 16GiB)" --parts 1 --optimizer adamw --commit eager --grad-dtype fp32 --moments fp32 --master fp32)

    bert
    fits bert-large --batch "$(rows 32768)" "${options[@]}" || return 0
    watch_clocks
    steps bert-large 55 12 32768 "${options[@]}" || { watch_clocks_end; return 0; }
    watch_clocks_end
    ms=$(step_ms bert-large)
    rate=$(awk -v ms="$ms" 'BEGIN { printf "%.1f", 256 / ms * 1e3 }')
    fact bert-large "$ms ms a step of 256, $rate sequences/s, at most $(field device_peak_bytes "$work/bert-large/metrics.jsonl" |
        sort -n | tail -n 1) bytes of the device; eps train --precision bf16 --batch 256 --seq $seq ${options[*]} --no-save"
    [ -z "$simulate" ] || { missing bert-l2l "no device to compare on"; return; }
    limited 80 "$python" tools/bench/peer_bert_capped.py --config "$work/config.json" --gib 16 --seq "$seq" --most 256 --seconds 60
    rc=$?
    best=$(sed -n 's/.*"sequences_per_s": \([0-9.]*\).*/\1/p' "$work/said" | sort -g | tail -n 1)
    if [ -z "$best" ]; then
        missing bert-l2l "tools/bench/peer_bert_capped.py: $(why $rc 80)"
        return
    fi
    fact bert-peer "$(grep '^{' "$work/said" | paste -sd ' ')"
    measured bert-l2l "$(ratio "$rate" "$best")" 1.4 "$rate sequences/s, transformers at its best batch within 16 GiB $best"
}

# t5: the model, and 200 pairs of 127 and 7 words, so that norms of gradients are known from the third step on
t5() {
    vocabulary=32128 seq=136
    local shape='"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12'
    [ -z "$simulate" ] || {
        vocabulary=300
        shape='"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2'
    }
    cat >"$work/config.json" <<JSON
{"model_type": "t5", $shape, "vocab_size": $vocabulary, "relative_attention_num_buckets": 32, "dropout_rate": 0.0,
 "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6, "feed_forward_proj": "relu", "decoder_start_token_id": 0,
 "eos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": true, "is_encoder_decoder": true}
JSON
    words '<pad>' '</s>' '[UNK]'
    echo '{"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "[UNK]"}' >"$work/tokenizer_config.json"
    awk -v v="$vocabulary" -v n="$([ -z "$simulate" ] && echo 200 || echo 4)" 'BEGIN {
        srand(1)
        for (row = 0; row < n; row++) {
            printf "{\"source\": \""
            for (i = 0; i < 127; i++) printf "w%d ", 3 + int(rand() * (v - 3))
            printf "\", \"target\": \""
            for (i = 0; i < 7; i++) printf "w%d ", 3 + int(rand() * (v - 3))
            print "\"}"
        } }' >"$work/pairs.jsonl"
    data=$work/pairs.jsonl held=$work/pairs.jsonl
    eps=$(programs)/eps
    take_cudnn
}

readonly pairs=(--source-seq 128 --parts 1 --optimizer adamw --commit eager --moments fp32 --master fp32)

# form NAME OPTION...: a run of it, as a fact; sets $peak, its bytes on the device
form() {
    local name=$1 ms
    shift
    peak=''
    fits "t5-$name" --batch "$(rows 13600)" "${pairs[@]}" "$@" || return 0
    steps "t5-$name" 24 12 13600 "${pairs[@]}" "$@" || return 0
    ms=$(step_ms "t5-$name")
    peak=$(field device_peak_bytes "$work/t5-$name/metrics.jsonl" | sort -n | tail -n 1)
    fact "t5-$name" "$ms ms a step of 100 pairs, $peak bytes of the device; eps train --precision bf16 --batch 100 --seq $seq \
${pairs[*]} $* --no-save"
}

part_t5() {
    local whole peak
    t5
    watch_clocks
    form exact
    whole=$peak
    form wta --approximate wta=0.3
    if [ -n "$whole" ] && [ -n "$peak" ]; then
        measured t5-memory "$(ratio "$whole" "$peak")" 2.7 "exact $whole bytes of the device, with wta=0.3 $peak"
    else
        missing t5-memory "exact or wta=0.3 did not run"
    fi
    form coded --approximate coded=8
    limited 20 "${ours[@]}" "$eps" train --model "$work/config.json" --data "$data" --eval-data "$held" --out "$work/base" \
        --batch 2 --seq "$seq" --source-seq 128 --steps 1 --save-every 0 --eval-every 0 --precision bf16 --device cuda:0
    model=$work/base/latest
    form lora --lora rank=32
    watch_clocks_end
}
