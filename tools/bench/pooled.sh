#!/usr/bin/env bash
# Gradients of convolutions' weights from means of blocks (arXiv 2409.11902: eps train --approximate pool=N) beside exact ones,
# of a ResNet-18 on images of 32 x 32: what is stored from forward to backward, as eps plan counts it, and a step's time.
#   all saved   by hand, what PyTorch's autograd saves in fp32, with relus in place: inputs of convolutions and of norms
#   published   that, of which convolutions' inputs but the image are means
#   exact       eps: inputs of norms and of blocks; all else is made again from them (`stash`); or kept, too. pool=N is the same
# And accuracy: of a narrower net on a tenth of CIFAR-10 or on Fashion-MNIST, SGD with Nesterov's momentum, random crops and
# flips; of each form from the same seeds, on the schedule that the exact one has and on a longer one; the difference paired
# by seed, with its interval, to the exact one of the same schedule.
#
# usage: tools/bench/pooled.sh [options]      defaults in brackets
#   --what time|accuracy|all [time]
#   --batch N [32]        images of a step; --rounds N [5] of times, each runs all forms once
#   --keep DIR            where accuracy's runs stay: what is there goes on, what is done is not run again; needed for it
#   --data DIR [/usr/share/datasets/fashion-mnist]   of Fashion-MNIST's four files (Debian: dataset-fashion-mnist), or of a tenth
#                         of CIFAR-10, train-5085.bin.xz and test-1017.bin.xz
#   --device NAME [cpu]   of the runs; --memory SIZE []   of it for each; --jobs N [1]   runs at once
#   --width N [16]        channels of the first stage; --epochs N [8], --longer N [12] of forms that pool, too; --seeds N [3]
#   --forms "F ..." ["pool=2 pool=4 pool=8 exact:long pool=2:long pool=4:long pool=8:long"]   of --approximate; F:long: on
#                         the longer schedule
#   --finished FILE [tools/bench/results/pooled.jsonl]   lines of finished seeds, from which it goes on
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

what=time batch=32 rounds=5 keep='' data=/usr/share/datasets/fashion-mnist width=16 epochs=8 longer=12 seeds=3 bin=build/bin
forms='pool=2 pool=4 pool=8 exact:long pool=2:long pool=4:long pool=8:long'
take_options "finished what batch rounds keep data device memory jobs width epochs longer seeds forms bin" "$@"
need_programs "$bin"
case $what in time | accuracy | all) ;; *) misuse "--what $what is none of time, accuracy, all" ;; esac
[ -n "$keep" ] || [ "$what" = time ] || misuse "--keep is needed: a directory for the runs"

# score FORM SEED: "accuracy loss" on the test images
score() {
    local n=$epochs options=()
    [[ $1 != *:long ]] || n=$longer
    [[ $1 == exact* ]] || options=(--approximate "${1%:long}")
    score_images "$keep/$1-$2" "$keep/net.json" "$n" "$2" --nesterov "${options[@]}"
}

if [ "$what" != time ]; then
    unpack_images
    echo "{\"model_type\": \"torchvision_resnet\", \"layer_type\": \"basic\", \"depths\": [2, 2, 2, 2], \"embedding_size\": $width,
 \"stem\": \"cifar\", $image_keys}" >"$keep/net.json"
    echo "ResNet-18 of $width channels, $images, $epochs epochs ($longer where long), $seeds seeds"
    setting="ResNet-18 of $width channels, $images, $epochs epochs and $longer of $image_batch rows"
    compare_forms
fi
[ "$what" != accuracy ] || exit 0
make_work

# Of an image, in numbers: stage s has 64 * 2^s channels and 1024 / 4^s pixels, and two blocks of two convolutions; those
# that change the size have a third.
saved() {
    awk -v side="$1" 'BEGIN {
        for (s = 0; s < 4; s++) {
            n = 65536 / 2 ^ s; h = 32 / 2 ^ s; q = int((h + side - 1) / side); mean = n / h ^ 2 * q ^ 2
            before = s ? 2 * n : n; p = s ? int((2 * h + side - 1) / side) : q; mean_before = s ? 2 * n / (2 * h) ^ 2 * p ^ 2 : mean
            norms += 4 * n + (s > 0) * n
            inputs += side > 1 ? mean_before + 3 * mean : before + 3 * n
        }
        print 4 * (3 * 1024 + 65536 + norms + inputs)
    }'
}

# stored CATEGORY: bytes of a step's images
stored() {
    "$bin/eps" plan --json --model resnet-18 --image 32x32 --batch "$batch" --microbatch "$batch" --device cpu --device-mem 64GiB \
        --host-mem 64GiB | planned "$1"
}

all=$(($(saved 1) * batch))
echo "ResNet-18, $batch images of 32 x 32: all saved $all bytes"
line() { awk -v n="$1" -v s="$all" -v b="$2" 'BEGIN { printf "  %-34s %12d bytes: %.1f %% less\n", n, b, 100 * (1 - b / s) }'; }
for side in 2 4 8; do line "published, means of $side x $side" $(($(saved $side) * batch)); done
line "exact, made again" "$(stored stash)"
line "exact, kept" $(($(stored stash) + $(stored kept)))

write_images $((10 * batch)) 32
for ((round = 1; round <= rounds; round++)); do
    for form in wta=1 pool=2 pool=4 pool=8; do
        run_training --model resnet-18 --image 32x32 --data "$work/images.npy" --eval-data "$work/images.npy" --batch "$batch" \
            --microbatch "$batch" --steps 8 --device cpu --save-every 0 --eval-every 0 --approximate "$form"
        step_times >>"$work/$form"
    done
done
for form in pool=2 pool=4 pool=8; do
    awk -v e="$(median <"$work/wta=1")" -v a="$(median <"$work/$form")" -v f="$form" 'BEGIN {
        printf "a kept step: exact %.0f ms, %s %.0f ms: %.3f x faster\n", e, f, a, e / a }'
done
