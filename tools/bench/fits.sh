#!/usr/bin/env bash
# What fits, planned: the table on README.md's first screen. Of the models of eps plan, on three usual machines, the most of
# each that trains there (whole, else adapters of rank 16, else these on a base in nf4), with the host memory and the time that
# a step of 16 Ki tokens takes by the cards' data sheets. Needs no GPU, no weights and no network.
#
# usage: tools/bench/fits.sh [options]      defaults in brackets
#   --what table|tuned [table]    tuned: the sentence on the model that README.md tunes
#   --models TEXT [all]           a pattern of awk, which the names of the table's models match
#   --bin DIR [build/bin]         where eps is
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

what=table models=. bin=build/bin
take_options "what models bin" "$@"
need_programs "$bin"
make_work
export XDG_CACHE_HOME=$work # no measured profile

if [ "$what" = tuned ]; then
    options=(--model Qwen/Qwen3-0.6B --device cpu --precision bf16 --seq 1024 --batch 8)
    least=$("$bin/eps" plan "${options[@]}" --minimum)
    all=$("$bin/eps" plan "${options[@]}" --device-mem "$least" --host-mem 64GiB --json)
    host=$(sed -n 's/^{"host": {"current": \([0-9]*\).*/\1/p' <<<"$all")
    replay=$(sed -n 's/.*"replay": {"current": \([0-9]*\).*/\1/p' <<<"$all")
    awk -v device="$least" -v host="$((host - replay))" 'BEGIN {
        printf "In the least device memory, %.1f MiB, this training takes %.1f GiB of host memory\n", device / 2 ^ 20, host / 2 ^ 30 }'
    exit
fi

# of NAME OPTION...: "MODEL<tab>CELL" for each model
of() {
    "$bin/eps" plan "${@:2}" | awk -F '  +' '
        / parameters/ { name = $1; sub(/,.*/, "", name); size = $0; sub(/^[^,]*, /, "", size); sub(/ parameters.*/, "", size) }
        !/ parameters/ && name && !(name in cell) { cell[name] = ""; names[++n] = name; sizes[name] = size }
        $2 == "yes" && cell[name] == "" {
            step = $5
            sub(/\*$/, "", step)
            cell[name] = $6 ": " $4 ", " step
        }
        END { for (i = 1; i <= n; i++) print names[i] "\t" sizes[names[i]] "\t" (cell[names[i]] == "" ? "no" : cell[names[i]]) }' >"$work/$1"
}

of small --card rtx-4090 --device-mem 8GB --host-mem 32GiB
of middle --card rtx-4090 --host-mem 64GiB
of large --card h100 --host-mem 512GiB
echo '| model | parameters | RTX 4090 limited to 8 GB; host 32 GiB | RTX 4090, 24 GB; host 64 GiB | H100, 80 GB; host 512 GiB |'
echo '|---|---|---|---|---|'
paste "$work/small" "$work/middle" "$work/large" |
    awk -F '\t' -v models="$models" '$1 ~ models { print "| " $1 " | " $2 " | " $3 " | " $6 " | " $9 " |" }'
