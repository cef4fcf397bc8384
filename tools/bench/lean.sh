#!/usr/bin/env bash
# WRN-28-2 on images of 32 x 32 with less memory (Sohoni et al., arXiv 1904.10631): each technique alone, then together, by SGD
# with momentum; as eps plan counts it, of device and host together: weights, optimizer, gradients on their way and summed,
# activations, stash. Beside that: libraries, tables, the minibatches. Against the plain form in fp32, by hand: weights,
# gradients and moments of 4 bytes each, and what PyTorch's saved-tensor hooks count (tools/bench/peer_saved.py; of WRN-28-2 the
# sum over its layers, 0.02 % less).
#   fp16       --precision fp16 --master none --moments bf16 --grad-dtype bf16 --sums bf16: weights, activations, momentum and
#              the summed gradient of 2 bytes; the loss is scaled dynamically, and so the commit fenced
#   sparse     three in ten weights of the blocks' filters, with room for no more
#   remade     activations made again from the layers' inputs, one row at a time: the least device memory
#   segments   the same, and of the layers' inputs some alone stay; the others are made again, a segment of layers at a time: in the
#              least device memory of a host that has no room for all
#   parts      row groups of 2: 50 parts, summed before the update; batch norm's statistics are of two rows then
#   together   all of these but segments, in the least device memory: there what layers hand to each other is on the host,
#              and pieces of it are on the device besides
#   cut        all of these, segments included
#   whole      as together, but in one part: batch norm's statistics are of all images; `whole-cut` with segments
#   dense      as together, but for the sparse weights
#   fours      as together, in row groups of 4; batch norm's statistics are of four rows
#   ghosts     as together, with batch norms over ghost batches of two rows, whose blocks are one layer each
#   ghosts4    as fours, with ghost batches of four rows: the form whose accuracy is measured below as ghosts=4; `ghosts4-cut`
#              with segments
#   folded     as dense, in bf16 and without the sum: --commit folded, by AdamA, or by SGD's plain momentum; `folded-sparse` as
#              together
#   folded4    as ghosts4, likewise; `folded4-cut` with segments
#   both       as ghosts, in the device memory at which both sides together take the least, if no layers are cut
#   all        as ghosts, with segments
# And accuracy on a tenth of CIFAR-10 or on Fashion-MNIST: random crops and flips, a cosine schedule, by weights that are dense,
# and sparse from the same seeds, or `narrow`: as fp16 above, or `lean`: both, or `ghosts=N`: both, and batch norms over ghost
# batches of N rows, which are exact otherwise, or `all=N`: that in row groups of N, whose bytes are those of ghosts and ghosts4;
# or `folded=N`: of folded4, likewise; the difference paired by seed, with its interval.
#
# The bytes are also those of an encoder-decoder with dynamic convolutions (128 pairs of 32 + 32 tokens; 16 parts) and of GPT-2
# 124M (16 rows of 512 tokens, and as many parts), by AdamW, with four in ten weights.
#
# And held-out loss of a decoder, a GPT-2 of 4 layers of 192 on bytes of text, exact, in each technique that is not exact, and in
# both.
#
# usage: tools/bench/lean.sh [options]      defaults in brackets
#   --what bytes|sizes|accuracy|text|all [bytes]   sizes: bytes alone, in half the time
#   --net wrn-28-2|dynamic_conv|dynamic_conv-iwslt|gpt2-124m [wrn-28-2]   of which the bytes are; -iwslt: the published shape
#   --type fp16|bf16 [fp16]   of what has 16 bits
#   --batch N [100]       images of a step whose bytes are counted; a multiple of 50
#   --keep DIR            where accuracy's runs stay: what is there goes on, what is done is not run again; needed for it
#   --data DIR [/usr/share/datasets/fashion-mnist]   of Fashion-MNIST's four files (Debian: dataset-fashion-mnist), or of a tenth
#                         of CIFAR-10, train-5085.bin.xz and test-1017.bin.xz
#   --momentum plain|nesterov [plain]   of accuracy's SGD; the bytes are of plain momentum
#   --device NAME [cpu]   of the runs; --memory SIZE []   of it for each; --jobs N [1]   runs at once
#   --depth N [28] --factor N [2]   of the wide residual net whose accuracy is compared; --epochs N [8]; --seeds N [3]
#   --text FILE           of the decoder, needed for text; its last 1 % is held out; --steps N [600] of 16 x 128 bytes
#   --forms "F ..." ["keep=0.3 keep=0.1"]   of --sparse, every=25 added; narrow; lean, ghosts=N, all=N and folded=N, with keep=0.3
#   --finished FILE [tools/bench/results/lean.jsonl]   lines of finished seeds, from which it goes on
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

what=bytes net=wrn-28-2 type=fp16 batch=100 keep='' data=/usr/share/datasets/fashion-mnist depth=28 factor=2 epochs=8 seeds=3
text='' steps=600 momentum=plain bin=build/bin
forms='keep=0.3 keep=0.1'
take_options "finished what net type batch keep data device memory jobs depth factor epochs seeds text steps momentum forms bin" "$@"
need_programs "$bin"
case $what in
    bytes | sizes | accuracy | text | all) ;;
    *) misuse "--what $what is none of bytes, sizes, accuracy, text, all" ;;
esac
asks() { [ "$what" = all ] || [ "$what" = "$1" ]; }
case $net in
    wrn-28-2 | dynamic_conv | dynamic_conv-iwslt | gpt2-124m) ;;
    *) misuse "--net $net is none of wrn-28-2, dynamic_conv, dynamic_conv-iwslt, gpt2-124m" ;;
esac
case $momentum in plain | nesterov) ;; *) misuse "--momentum $momentum is none of plain, nesterov" ;; esac
case $type in fp16 | bf16) ;; *) misuse "--type $type is none of fp16, bf16" ;; esac
[ -n "$keep" ] || [ "$what" = bytes ] || [ "$what" = sizes ] || misuse "--keep is needed: a directory for the runs"

narrow=(--precision "$type" --master none --moments bf16 --grad-dtype bf16 --commit fenced --sums bf16)

# put_net FILE [KEY...]: the net whose accuracy is compared
put_net() {
    echo "{\"model_type\": \"wide_resnet\", \"depth\": $depth, \"widen_factor\": $factor, $image_keys${*:2}}" >"$1"
}

# take_form FORM KEPT: sets $options, which train it; KEPT: of the weights, where the form does not say so itself
take_form() {
    options=()
    case $1 in
        exact) ;;
        narrow) options=("${narrow[@]}") ;;
        lean | ghosts=*) options=("${narrow[@]}" --sparse "$2,every=25") ;;
        all=*) options=("${narrow[@]}" --sparse "$2,room=1,every=25" --parts $((image_batch / ${1#*=}))) ;;
        folded=*)
            options=(--precision bf16 --master none --moments bf16 --grad-dtype bf16 --commit folded --sparse "$2,room=1,every=25"
                     --parts $((image_batch / ${1#*=})))
            ;;
        *) options=(--sparse "$1,every=25") ;;
    esac
}

# score FORM SEED: "accuracy loss" on the test images
score() {
    local options net=$keep/net.json
    take_form "$1" keep=0.3
    if [[ $1 =~ ^(ghosts|all|folded)= ]]; then
        net=$keep/$1.json
        put_net "$net" ", \"ghost_batch_size\": ${1#*=}"
    fi
    [ "$momentum" = plain ] || options+=(--nesterov)
    score_images "$keep/$1-$2" "$net" "$epochs" "$2" "${options[@]}"
}

# planned_so OPTION...: in JSON
planned_so() {
    "$bin/eps" plan --json "${job[@]}" --device cpu --device-mem 64GiB --host-mem 64GiB "$@"
}

# counted: of a plan, bytes of both sides in the categories above, then those of the others
counted() {
    grep -o '"[a-z_]*": {"current": [0-9]*' | tr -d '":{' |
        awk '$1 == "host" { next } $1 ~ /^(library|other|data)$/ { beside += $3; next } { counted += $3 }
            END { printf "%.0f %.0f\n", counted, beside }'
}

# moved PLAN OPTION...: bytes between host and device in a step, and its operations in billions
moved() {
    local bytes groups
    bytes=$(grep -o '"bytes_per_step": {[^}]*}' <<<"$1" | grep -o '[0-9]*' | awk '{ n += $1 } END { printf "%.0f", n }')
    groups=$(grep -o '"row_groups": [0-9]*' <<<"$1" | tr -dc 0-9)
    planned_so "${@:2}" --timeline | grep -o '"busy_ms": [0-9.e-]*, "share": [0-9.e-]*, "tflops": [0-9.]*' | tr -d ',' | # of a row group
        awk -v bytes="$bytes" -v groups="$groups" '{ n += $2 * $6 } END { printf "%s %.0f\n", bytes, n * groups }'
}

# least OPTION...: the smallest device memory
least() {
    "$bin/eps" plan --minimum "${job[@]}" --device cpu "$@"
}

# cut NAME OPTION...: line, in the least device memory of such a host
cut() {
    local host
    host=$(stashless "${job[@]}" --device cpu --host-mem 64GiB "${@:2}")
    line "$1" "${@:2}" --host-mem "$host" --device-mem "$(least "${@:2}" --host-mem "$host")"
}

# line NAME OPTION...: what a form takes
line() {
    local plan all beside bytes operations step=''
    plan=$(planned_so "${@:2}")
    read -r all beside < <(counted <<<"$plan")
    if [ "$what" != sizes ]; then
        read -r bytes operations < <(moved "$plan" "${@:2}")
        step="; a step moves $bytes, and computes $operations GFLOP"
    fi
    awk -v n="$1" -v a="$all" -v b="$beside" -v p="$plain" -v step="$step" 'BEGIN {
        printf "  %-11s %12.0f bytes: %.2f x less; beside it %.0f%s\n", n, a, p / a, b, step }'
}

# leanest OPTION...: of device memories from the least to twice that, in steps of 1/64, the one at which counted's are fewest
leanest() {
    local least step m all best='' at=''
    least=$(least "$@")
    step=$((least / 64))
    for ((m = least; m <= 2 * least; m += step)); do
        read -r all _ < <(planned_so "$@" --device-mem "$m" | counted)
        [ -n "$best" ] && [ "$all" -ge "$best" ] || best=$all at=$m
    done
    echo "$at"
}

bytes() {
    local plain sparse=(--sparse 'keep=0.4,room=1') n_parts=16 whole all folded fours job heads=4 inner=256 kernels='3, 7, 15, 31' width=128 layers=4
    make_work
    export XDG_CACHE_HOME=$work # what this machine was measured to do would change choices
    case $net in
        wrn-28-2)
            job=(--model "$net" --labels 10 --batch "$batch" --optimizer sgd --momentum 0.9)
            sparse=(--sparse 'keep=0.3,room=1') n_parts=50
            plain=$(awk -v rows="$batch" 'BEGIN { printf "%.0f", 12 * 1467610 + 3813400 * rows }')
            echo "WRN-28-2, $batch images"
            ;;
        dynamic_conv)
            print_dynamic_conv_config 6000 >"$work/net.json"
            job=(--model "$work/net.json" --batch 128 --seq 64 --source-seq 32)
            plain=$((16 * 1886208 + 128 * 2555936 + 12))
            echo "dynamic convolutions, 4 + 4 layers of 128, 128 pairs"
            ;;
        dynamic_conv-iwslt)
            cat >"$work/net.json" <<'JSON'
{"model_type": "dynamic_conv", "d_model": 512, "num_heads": 4, "ffn_dim": 1024, "encoder_layers": 7, "decoder_layers": 6,
 "encoder_kernel_sizes": [3, 7, 15, 31, 31, 31, 31], "decoder_kernel_sizes": [3, 7, 15, 31, 31, 31], "vocab_size": 6632,
 "source_vocab_size": 8848, "tie_word_embeddings": false, "dropout": 0.3, "attention_dropout": 0.1}
JSON
            job=(--model "$work/net.json" --batch 128 --seq 64 --source-seq 32)
            plain=$((16 * 38685184 + 128 * 11771584 + 12))
            echo "dynamic convolutions, 7 + 6 layers of 512, 128 pairs"
            ;;
        gpt2-124m)
            width=768 layers=12 heads=12 seq=512
            print_config 50257 >"$work/net.json"
            job=(--model "$work/net.json" --batch 16 --seq 512)
            plain=$((16 * 124046592 + 16 * 408467456 + 4100))
            echo "GPT-2 124M, 16 x 512 tokens"
            ;;
    esac
    printf '  %-11s %12.0f bytes\n' plain "$plain"
    whole=("${narrow[@]}" "${sparse[@]}")
    all=("${whole[@]}" --parts "$n_parts")
    folded=(--precision bf16 --master none --moments bf16 --grad-dtype bf16 --commit folded --parts "$n_parts")
    [ "$net" = wrn-28-2 ] || folded+=(--optimizer adama)
    line exact
    line fp16 "${narrow[@]}"
    line sparse "${sparse[@]}"
    line remade --device-mem "$(least)"
    cut segments
    line parts --commit fenced --parts "$n_parts" --device-mem "$(least --commit fenced --parts "$n_parts")"
    line together "${all[@]}" --device-mem "$(least "${all[@]}")"
    cut cut "${all[@]}"
    line dense "${narrow[@]}" --parts "$n_parts" --device-mem "$(least "${narrow[@]}" --parts "$n_parts")"
    line folded "${folded[@]}" --device-mem "$(least "${folded[@]}")"
    line folded-sparse "${folded[@]}" "${sparse[@]}" --device-mem "$(least "${folded[@]}" "${sparse[@]}")"
    line whole "${whole[@]}" --device-mem "$(least "${whole[@]}")"
    cut whole-cut "${whole[@]}"
    [ "$net" = wrn-28-2 ] || return 0
    fours=("${whole[@]}" --parts "$((batch / 4))")
    line fours "${fours[@]}" --device-mem "$(least "${fours[@]}")"
    echo '{"model_type": "wide_resnet", "depth": 28, "widen_factor": 2, "ghost_batch_size": 2}' >"$work/net.json"
    job[1]=$work/net.json
    line ghosts "${all[@]}" --device-mem "$(least "${all[@]}")"
    line both "${all[@]}" --device-mem "$(leanest "${all[@]}")"
    cut all "${all[@]}"
    sed -i 's/: 2}/: 4}/' "$work/net.json"
    line ghosts4 "${fours[@]}" --device-mem "$(least "${fours[@]}")"
    cut ghosts4-cut "${fours[@]}"
    folded+=("${sparse[@]}" --parts "$((batch / 4))")
    line folded4 "${folded[@]}" --device-mem "$(least "${folded[@]}")"
    cut folded4-cut "${folded[@]}"
}

# The decoder, of one seed.
texts() {
    local form options width=192 layers=4 heads=4 seq=128
    [ -r "$text" ] || misuse "--text is needed: a file of text"
    mkdir -p "$keep"
    print_config 256 >"$keep/text.json"
    echo "GPT-2 of 4 layers of 192, $steps steps of 16 x 128 bytes"
    for form in exact narrow keep=0.4 lean; do
        take_form "$form" keep=0.4
        at_once train_once "$keep/text-$form" --keep 1 --model "$keep/text.json" --data "$text" --batch 16 --seq "$seq" \
            --steps "$steps" --lr 1e-3 --seed 1 "${options[@]}"
    done
    finish
    for form in exact narrow keep=0.4 lean; do
        echo "  $form: held-out loss $(field eval_loss <"$keep/text-$form/metrics.jsonl" | tail -n 1)"
    done
}

if asks accuracy; then
    unpack_images
    put_net "$keep/net.json"
    echo "WRN-$depth-$factor, $images, $epochs epochs, $seeds seeds"
    setting="WRN-$depth-$factor, $images, $epochs epochs of $image_batch rows, SGD with $momentum momentum, $type"
    compare_forms
fi
if asks text; then texts; fi
if asks bytes || [ "$what" = sizes ]; then bytes; fi
