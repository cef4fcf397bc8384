#!/usr/bin/env bash
# Training of a residual net on the CPU, in fp32 by SGD with Nesterov's momentum: eps with all kept that it can keep, and in
# its least device memory, beside PyTorch, channels last, by the better of one thread and all. Prints a step's time, medians of
# rounds in which the sides take turns, and what each takes of memory: of eps the device's and the host's, where the stash is.
#
# usage: tools/bench/images.sh [options]      defaults in brackets
#   --model NAME [resnet-18]   resnet-18, resnet-50, of both sides
#   --image N [32]        pixels of a side; of 32, the stem is CIFAR's
#   --batch N [128] --rounds N [5]
#   --least N [8]         rows at a time in the least memory
#   --python PATH [/usr/bin/python3]  with torchvision
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

model=resnet-18 image=32 batch=128 rounds=5 least=8 python=/usr/bin/python3 bin=build/bin
take_options "model image batch rounds least python bin" "$@"
need_programs "$bin"
need_python "$python" torch torchvision
make_work
steps=6
write_images $((batch * 4)) "$image"

job=(--model "$model" --image "${image}x$image" --batch "$batch")
full=(--microbatch "$batch") small=(--microbatch "$least")

train() {
    run_training "${job[@]}" --data "$work/images.npy" --eval-data "$work/images.npy" --steps $steps --optimizer sgd --momentum 0.9 \
        --nesterov --device cpu --save-every 0 --eval-every 0 "$@"
}

least_plan=("${job[@]}" "${small[@]}" --labels 10 --optimizer sgd --momentum 0.9 --host-mem 64GiB)
smallest=$("$bin/eps" plan "${least_plan[@]}" --minimum)
for ((round = 1; round <= rounds; round++)); do
    "$python" tools/bench/peer_resnet.py "${model/-/}" "$image" "$batch" $steps >"$work/peer"
    head -n -1 "$work/peer" >>"$work/times.peer"
    tail -n 1 "$work/peer" >>"$work/bytes.peer"
    train "${full[@]}"
    step_times >>"$work/times.full"
    train "${small[@]}" --device-mem "$smallest"
    step_times >>"$work/times.least"
done

peer=$(median <"$work/times.peer") bytes=$(median <"$work/bytes.peer")
echo "$model, $batch images of $image x $image: PyTorch $peer ms, $(mib "$bytes")"
awk -v p="$peer" -v a="$(median <"$work/times.full")" -v b="$(median <"$work/times.least")" 'BEGIN {
    printf "eps, kept: %.0f ms, %.2f of its speed; in the least memory %.0f ms, %.2f\n", a, p / a, b, p / b }'
host=$("$bin/eps" plan --json "${least_plan[@]}" --device-mem "$smallest" | planned host)
awk -v d="$smallest" -v h="$host" 'BEGIN { printf "the least: device %.1f MiB, host %.0f MiB\n", d / 2^20, h / 2^20 }'
