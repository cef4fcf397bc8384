#!/usr/bin/env bash
# Training that is killed at random instants and resumed until it is through ends as if it had been left alone.
#
# usage: tests/system/chaos.sh BIN [KILLS] [SEED]      BIN: the folder of eps, epsd and eps-worker
#
# Runs are of each kind in turn: optimizer, parts, 16-bit numbers, fenced commit, the stash on the host, masked tokens.
# Each time one of client, worker and daemon, drawn at random, gets SIGKILL after a random time, saves, start-up and
# shut-down included. Then, within a minute, however busy the machine: no process, socket or directory of the run is left; every checkpoint that stands
# is whole; what is resumed ends with the same bits of weights and moments, and with each step once in metrics.jsonl.
set -u

fixtures=$(realpath "$(dirname "$0")/../fixtures")
bin=$(realpath "${1:?usage: tests/system/chaos.sh BIN [KILLS] [SEED]}")
kills=${2:-100}
RANDOM=${3:-$$}
echo "seed ${3:-$$}, $kills kills"

steps=60 every=7
. "$(dirname "$0")/common.sh"
mkdir bert
cp "$fixtures/tokenizers/bert.json" bert/tokenizer.json
cat >bert/config.json <<'JSON'
{"model_type": "bert", "vocab_size": 330, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
 "intermediate_size": 64, "max_position_embeddings": 32}
JSON

fail() {
    echo "FAILED: $*"
    tail -n 5 "$top"/said "$run"/log 2>/dev/null
    exit 1
}

# The optimizers, with their sums; then 16-bit numbers, fenced commit, the stash on the host, and masked tokens.
kinds=(
    "--device-mem 64MiB --optimizer adama --parts 1"
    "--device-mem 64MiB --optimizer adamw --parts 1"
    "--device-mem 64MiB --optimizer adama --parts 4"
    "--device-mem 64MiB --optimizer adamw --parts 4"
    "--device-mem 64MiB --optimizer adama --parts 2 --precision bf16 --moments bf16 --grad-dtype bf16"
    "--device-mem 64MiB --optimizer adamw --parts 4 --workers 2 --commit fenced --clip-norm 0.5"
    "--device-mem MINIMUM --optimizer adama --parts 1"
    "--device-mem MINIMUM --optimizer adamw --parts 2 --precision bf16 --moments bf16 --clip-norm 0.5"
    "--device-mem 64MiB --model bert/config.json --parts 2"
)

# kill_one CLIENT: the client, or one of its children; sets victim
kill_one() {
    local -a pids=("$1")
    mapfile -t -O 1 pids < <(pgrep -P "$1")
    local pid=${pids[$((RANDOM % ${#pids[@]}))]}
    victim=$(cat "/proc/$pid/comm" 2>/dev/null || echo gone)
    kill -KILL "$pid" 2>/dev/null || victim=
}

# make_reference KIND: what nobody disturbs, the first time that it is asked for; sets took, in ms
make_reference() {
    local run=reference-$1 began least
    [ ! -e "$run" ] || return
    # shellcheck disable=SC2086 # several options
    least=$("$bin/eps" plan --model config.json --batch 8 --seq 32 --minimum ${kinds[$1]/MINIMUM/1GiB}) || fail "eps plan"
    kinds[$1]=${kinds[$1]/MINIMUM/$least}
    began=$(date +%s%N)
    (begin "$1" "$run") >said 2>&1 || fail "the run that nobody disturbs: ${kinds[$1]}"
    took=$((($(date +%s%N) - began) / 1000000))
    await_nothing
}

done_kills=0 trial=0 first=$((RANDOM % ${#kinds[@]}))
declare -A killed
while [ $done_kills -lt "$kills" ]; do
    kind=$(((first + 2 * trial) % ${#kinds[@]})) run=trial-$trial status=1
    trial=$((trial + 1))
    make_reference $kind
    while [ $status -ne 0 ]; do
        if [ -e "$run/latest" ]; then
            "$bin/eps" train --resume "$run" >said 2>&1 &
        else # nothing was saved yet
            rm -rf "$run"
            begin $kind $run >said 2>&1 &
        fi
        client=$! victim=
        if [ $done_kills -lt "$kills" ]; then
            sleep "$(printf '0.%03d' $((RANDOM % (took < 999 ? took : 999))))"
            if kill -0 $client 2>/dev/null; then
                kill_one $client
                [ -z "$victim" ] || done_kills=$((done_kills + 1))
                [ -z "$victim" ] || killed[$victim]=$((${killed[$victim]:-0} + 1))
            fi
        fi
        wait $client 2>/dev/null
        status=$?
        [ "$(readlink "$run/latest")" != step-$steps ] || status=0 # killed after its work was done
        [ $status -eq 0 ] || [ -n "$victim" ] || fail "nobody was killed, and yet: status $status"
        await_nothing
        if ls -d "$run"/step-*[0-9] >/dev/null 2>&1; then
            "$bin/eps" verify "$run" >verified 2>&1 || fail "eps verify: $(cat verified)"
        fi
    done
    check_bits "$run" "reference-$kind"
    rm -rf "$run"
done
for victim in "${!killed[@]}"; do
    echo "killed $victim: ${killed[$victim]} times"
done
echo "$trial runs, each with the bits of the one that nobody disturbed"
