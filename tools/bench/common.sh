# shellcheck shell=bash
# Shared by the scripts of this folder; each sources it from the repository's root.

script=${0##*/}

# misuse SENTENCE
misuse() {
    echo "$script: $1" >&2
    exit 2
}

# take_options NAMES OPTION...: "--NAME VALUE" sets the variable of that name, which already holds its default. NAMES are
# separated by blanks. --help prints the script's first comment.
take_options() {
    local names=" $1 "
    shift
    while [ $# -gt 0 ]; do
        case "$1" in
        --help | -h) awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "tools/bench/$script"; exit ;;
        --*[!a-z]* | [!-]* | -[!-]* | --) misuse "unknown option $1 (see --help)" ;;
        *) [[ $names == *" ${1#--} "* ]] || misuse "unknown option $1 (see --help)" ;;
        esac
        [ $# -ge 2 ] || misuse "$1 needs a value"
        declare -g "${1#--}=$2"
        shift 2
    done
}

# need_programs BIN
need_programs() {
    [ -x "$1/eps" ] || { echo "$script: no $1/eps: build the release preset first" >&2; exit 1; }
}

# print_config VOCABULARY: prints config.json of a GPT-2 without dropout, from $width, $layers, $heads and $seq
print_config() {
    cat <<JSON
{"model_type": "gpt2", "n_embd": $width, "n_layer": $layers, "n_head": $heads, "vocab_size": $1,
 "n_positions": $seq, "activation_function": "gelu_new", "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
JSON
}

# The same of a Qwen 3, also from $kv, $inner and $headwidth
print_qwen3_config() {
    cat <<JSON
{"model_type": "qwen3", "hidden_size": $width, "num_hidden_layers": $layers, "num_attention_heads": $heads,
 "num_key_value_heads": $kv, "head_dim": $headwidth, "intermediate_size": $inner, "vocab_size": $1,
 "max_position_embeddings": $seq, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": true}
JSON
}
