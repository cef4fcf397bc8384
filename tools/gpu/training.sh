# shellcheck shell=bash
# Training as users run it, with daemon and worker: identical bits in two runs, a resumed checkpoint, the CPU's losses, the
# budget, and the error for a missing device.
# shellcheck disable=SC2154,SC2034 # their options and work folder come from outside; print_config reads shapes

# train NAME OPTION...: trains in $work/NAME
train() {
    local name=$1
    shift
    limited "$seconds_each" "${ours[@]}" "$eps" train --model "$work/config.json" --data "$work/text.txt" --eval-data "$work/held.txt" \
        --out "$work/$name" --batch "$batch" --seq "$seq" --steps "$steps" --lr 1e-3 "$@"
}

# trained NAME TEXT OPTION...: the same; records a failure as a finding
trained() {
    local name=$1 text=$2
    shift 2
    train "$name" "$@"
    local rc=$?
    [ $rc -eq 0 ] || failed "train-$name" "$text: $(why $rc "$seconds_each")"
    return $rc
}

# equal NAME A B TEXT: compares two runs' last weights
equal() {
    if cmp -s "$work/$2/latest/model.safetensors" "$work/$3/latest/model.safetensors"; then
        passed "$1" "$4"
    else
        failed "$1" "not so: $4"
    fi
}

# near NAME A B TOLERANCE TEXT: compares two runs' losses step by step
near() {
    local worst
    worst=$(paste <(field loss "$work/$2/metrics.jsonl") <(field loss "$work/$3/metrics.jsonl") |
        awk '{ d = ($1 - $2) / $2; d = d < 0 ? -d : d; if (NF < 2 || d != d) d = 9; if (d > most) most = d } END { print NR ? most + 0 : 9 }')
    if awk -v a="$worst" -v b="$4" 'BEGIN { exit !(a <= b) }'; then
        passed "$1" "$5: at most $worst apart, of $4"
    else
        failed "$1" "$5: $worst apart, more than $4"
    fi
}

# Peak device memory of the run's process, compared with its budget. If the driver does not report processes, as in some
# containers, the increase of the whole device's memory.
budget() {
    local before most rc text budget_mib=3072
    # shellcheck disable=SC2054 # they are nvidia-smi's
    local -a each=(nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits) \
        whole=(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits) watchers=()

    [ -z "$simulate" ] || return 0
    before=$("${whole[@]}" | head -n 1)
    "${each[@]}" >"$work/before" 2>/dev/null
    "${whole[@]}" -lms 50 >"$work/used" 2>/dev/null &
    watchers+=($!)
    "${each[@]}" -lms 50 >"$work/processes" 2>/dev/null &
    watchers+=($!)
    print_config 256 >"$work/config.json"
    trained budget "a run in 3 GiB" --device "$device" --precision bf16 --device-mem "${budget_mib}MiB" --save-every 0
    rc=$?
    kill "${watchers[@]}" 2>/dev/null
    wait "${watchers[@]}" 2>/dev/null
    [ $rc -eq 0 ] || return 0
    most=$(awk -F ', *' 'FILENAME == ARGV[1] { before[$1]; next }
        !($1 in before) && $2 ~ /^[0-9]+$/ && $2 + 0 > most { most = $2 + 0 } END { print most + 0 }' "$work/before" "$work/processes")
    text="of the device the worker's process has"
    if [ "$most" -eq 0 ]; then
        most=$(($(sort -n "$work/used" | tail -n 1) - ${before:-0}))
        text="no process is told of; more than before, of the whole device, is in use by"
    fi
    if [ "$most" -le 0 ]; then
        missing budget "nvidia-smi tells of no memory in use"
    elif [ "$most" -le "$budget_mib" ]; then
        passed budget "$text $most MiB at most, in a run of ${budget_mib} MiB"
    else
        failed budget "$text $most MiB at most, in a run of ${budget_mib} MiB"
    fi
}

# refused NAME TEXT OPTION...: expects one sentence on stderr and status 1 or 2, quickly
refused() {
    local name=$1 text=$2 rc
    shift 2
    train "$name" "$@"
    rc=$?
    if { [ $rc -eq 1 ] || [ $rc -eq 2 ]; } && [ "$(grep -c '^eps train: ' "$work/said")" -eq 1 ]; then
        passed "$name" "$text: $(grep '^eps train: ' "$work/said")"
    else
        failed "$name" "$text: $(why $rc "$seconds_each")"
    fi
}

# Devices by what nvidia-smi calls them.
named() {
    local uuid=GPU-8f2c0000 bus=0000:3b:00.0 # the simulated one's
    if [ -z "$simulate" ]; then
        uuid=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -n 1)
        bus=$(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader | head -n 1)
    fi
    trained uuid "a run on the device of a UUID" --device "cuda:${uuid:0:12}" --precision fp32 --save-every 0 &&
        equal device-uuid once uuid "a run on cuda:${uuid:0:12} ends with the bits of one on cuda:0"
    trained bus "a run on the device at a PCI address" --device "cuda:$bus" --precision fp32 --save-every 0 &&
        equal device-bus once bus "a run on cuda:$bus ends with the bits of one on cuda:0"
}

# On a host that has two GPUs; and, if it has two sockets, where memory lies.
pair() {
    local n=1
    [ -n "$simulate" ] || n=$(nvidia-smi -L | grep -c '^GPU')
    if [ "$n" -lt 2 ]; then
        missing two-gpus "the host has one GPU"
        missing near-gpus "the host has one GPU"
        return 0
    fi
    trained parts "a run of two parts" --device "$device" --precision fp32 --parts 2 --deterministic --save-every 0 || return 0
    trained two "the same on two GPUs" --device cuda --workers 2 --precision fp32 --parts 2 --deterministic --save-every 0 &&
        equal two-gpus parts two "a run on two GPUs ends with the bits of one on one GPU"
    if [ ! -d /sys/devices/system/node/node1 ]; then
        missing near-gpus "the host has one NUMA node"
    elif grep -q 'memory: the weights lie' "$work/two/log"; then
        passed near-gpus "$(grep -o '\(memory: the\|threads run\).*' "$work/two/log" | paste -sd ';')"
    else
        failed near-gpus "nothing lies near the GPUs, of a host with several NUMA nodes"
    fi
}

part_training() {
    eps=$(programs)/eps device=cuda:0 seconds_each=25 batch=8
    width=256 layers=4 heads=4 seq=128 steps=20
    [ -z "$simulate" ] || width=16 layers=1 heads=2 seq=16 steps=4 batch=2
    take_cudnn
    cat README.md client/README.md eps/README.md >"$work/text.txt"
    head -c 4000 README.md >"$work/held.txt"
    print_config 256 >"$work/config.json"

    trained once "a run in fp32" --device "$device" --precision fp32 --save-every $((steps / 2)) --keep 0 || return 0
    trained again "the same" --device "$device" --precision fp32 --save-every 0 &&
        equal train-same once again "two runs of the same command end with the same bits"
    trained resumed "a run resumed in its middle" --device "$device" --precision fp32 --resume "$work/once/step-$((steps / 2))" &&
        equal train-resume once resumed "a run resumed from step $((steps / 2)) ends with the bits of one that never stopped"
    trained cpu "the same on the CPU" --device cpu --precision fp32 --save-every 0 &&
        near train-cpu once cpu 1e-4 "losses of $steps steps in fp32 beside the CPU's (its sums are in another order)"
    trained bf16 "a run in bf16" --device "$device" --precision bf16 --save-every 0 &&
        near train-bf16 bf16 once 0.02 "losses of $steps steps in bf16 beside fp32's (8 bits of each number)"
    trained fp16 "a run in fp16" --device "$device" --precision fp16 --save-every 0 &&
        near train-fp16 fp16 once 0.005 "losses of $steps steps in fp16 beside fp32's (11 bits of each number)"
    named
    pair
    refused no-such-device "a device that is not there is refused" --device cuda:99
    refused too-little "memory that the libraries alone take is refused" --device "$device" --device-mem 1MiB
    width=1024 layers=8 heads=16 seq=512 budget
}
