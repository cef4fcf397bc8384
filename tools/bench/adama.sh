#!/usr/bin/env bash
# AdamA (arXiv 2305.19982), which squares each part's gradient, beside AdamW, which squares their sum: the held-out loss of
# runs on text, a step's time, and the depth that fits the same host memory. Prints a line per number of parts: the loss of
# each seed, and the difference to AdamW's paired by seed, with its interval; first at one rate, then each at its best,
# which is chosen on the first seed.
#
# usage: tools/bench/adama.sh [options]      defaults in brackets
#   --what loss|time|depth|all [all]
#   --keep DIR            where the runs stay: what is there goes on, what is done is not run again. Needed for loss
#   --data FILE [build/bench-text.txt]   text; its last 1 % is held out. Without it that of the licences is made
#   --preset NAME [text-small] --steps N [2000] --batch N [16] --seq N [128] --seeds N [3]
#   --lr X [3e-3]         the one rate
#   --rates "X Y" ["1e-3 6e-3"]   more rates, of which with the first each takes its best; "": none
#   --rounds N [5]        of times, each runs all forms once
#   --host BYTES [4GiB]   of depth
#   --finished FILE [tools/bench/results/adama.jsonl]   lines of finished seeds, from which it goes on
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

what=all keep='' data=build/bench-text.txt preset=text-small steps=2000 batch=16 seq=128 seeds=3
lr=3e-3 rates='1e-3 6e-3' rounds=5 host=4GiB bin=build/bin
take_options "finished what keep data preset steps batch seq seeds lr rates rounds host bin" "$@"
need_programs "$bin"
case $what in loss | time | depth | all) ;; *) misuse "--what $what is none of loss, time, depth, all" ;; esac
asks() { [ "$what" = all ] || [ "$what" = "$1" ]; }
[ -n "$keep" ] || ! asks loss || misuse "--keep is needed: a directory for the runs"

forms="adamw-8 adama-1 adama-2 adama-4 adama-8"

# run_of FORM RATE SEED: the run's directory, once it is done
run_of() {
    local out=$keep/$1-$2-$3
    if [ "$(readlink "$out/latest" 2>/dev/null)" = "step-$steps" ]; then
        :
    elif [ -e "$out/latest" ]; then
        "$bin/eps" train --resume "$out" >"$out.log" 2>&1
    else
        rm -rf "$out"
        "$bin/eps" train --model "$preset" --data "$data" --optimizer "${1%-*}" --parts "${1#*-}" --batch "$batch" \
            --seq "$seq" --steps "$steps" --lr "$2" --seed "$3" --eval-every $((steps / 10)) --save-every $((steps / 10)) \
            --keep 1 --device cpu --out "$out" >"$out.log" 2>&1
    fi || { tail -n 3 "$out.log" >&2; exit 1; }
    echo "$out"
}

# score "FORM at RATE" SEED: the held-out loss after the last step
score() {
    local out
    out=$(run_of "${1% at *}" "${1#* at }" "$2")
    field eval_loss <"$out/metrics.jsonl" | tail -n 1
}

# best_rate FORM: of all rates, the one whose first seed has the least loss
best_rate() {
    local rate seeds=1 arms=()
    for rate in $lr $rates; do arms+=("$1 at $rate"); done
    measure_all "${arms[@]}"
    for rate in $lr $rates; do echo "$(figures_of "$1 at $rate" "${arms[@]}") $rate"; done | sort -g | awk 'NR == 1 { print $2 }'
}

# compare_all ARM...: with the first one
compare_all() {
    local reference now name
    measure_all "$@"
    reference=$(figures_of "$1" "$@")
    for name in "$@"; do
        now=$(figures_of "$name" "$@")
        compare "${name% at *}" "${name#* at }" "$now" "$reference"
    done
}

# compare FORM RATE LOSSES REFERENCE
compare() {
    local pairs
    pairs=$(paste <(echo "$3") <(echo "$4"))
    printf "%-8s at %-6s%s; less AdamW's %s\n" "$1" "$2" "$(awk '{ printf " %.4f", $1 }' <<<"$pairs")" \
        "$(difference 1 2 <<<"$pairs")"
}

if asks loss; then
    if [ "$data" = build/bench-text.txt ] && [ ! -e "$data" ]; then
        mkdir -p build
        tools/bench/licences_text.sh "$data" build/bench-held-out.txt
    fi
    [ -r "$data" ] || misuse "no $data: give text by --data"
    mkdir -p "$keep"
    setting="$preset, $steps steps of $batch x $seq tokens of $(cksum <"$data")"
    figures=loss arms=()
    [ -e "$keep/settings" ] || echo "$setting" >"$keep/settings"
    [ "$(cat "$keep/settings")" = "$setting" ] || misuse "--keep $keep has runs of $(cat "$keep/settings"): choose another"
    echo "held-out loss, $preset, $steps steps of $batch x $seq tokens, $seeds seeds, at one rate"
    for form in $forms; do arms+=("$form at $lr"); done
    compare_all "${arms[@]}"
    drawn=()
    for form in $forms; do [ ! -e "$keep/$form-$lr-1/latest" ] || drawn+=("$keep/$form-$lr-1"); done
    [ ${#drawn[@]} -eq 0 ] || "$bin/eps" report "${drawn[@]}" --out "$keep/adama.svg"
    if [ -n "$rates" ]; then
        echo "each at its best of $lr $rates"
        arms=()
        for form in $forms; do
            rate=$(best_rate "$form")
            arms+=("$form at $rate")
        done
        compare_all "${arms[@]}"
    fi
fi

if asks time; then
    make_work
    width=512 layers=6 heads=8 steps=12
    print_config 256 >"$work/config.json"
    write_text $((batch * seq * 20 + 1))
    for ((round = 1; round <= rounds; round++)); do
        for moments in fp32 bf16; do
            for form in adamw adama; do
                run_training --model "$work/config.json" --data "$work/data.txt" --eval-data "$work/held_out.txt" --batch "$batch" \
                    --seq "$seq" --steps "$steps" --parts 8 --optimizer "$form" --moments "$moments" --device cpu --save-every 0 --eval-every 0
                step_times >>"$work/$form-$moments"
            done
        done
    done
    for moments in fp32 bf16; do
        awk -v a="$(median <"$work/adama-$moments")" -v w="$(median <"$work/adamw-$moments")" -v m=$moments 'BEGIN {
            printf "a step in 8 parts, moments %s: AdamA %.1f ms, AdamW %.1f ms: %.3f\n", m, a, w, a / w }'
    done
fi

# parameters LAYERS: of a GPT-2 of that depth
parameters() {
    width=768 heads=12 layers=$1 seq=1024
    print_config 50257 >"$work/config.json"
    "$bin/eps" plan --model "$work/config.json" --batch 8 --seq 128 --json | field parameters
}

# depth OPTIMIZER MOMENTS: layers that fit
depth() {
    "$bin/eps" plan --model gpt2 --batch 8 --seq 128 --parts 8 --optimizer "$1" --moments "$2" --device-mem 4GiB \
        --host-mem "$host" --find-depth
}

if asks depth; then
    bytes=$(numfmt --from=iec-i --suffix=B "$host" 2>/dev/null) || misuse "--host $host: give it as in 4GiB"
    [ -n "${work-}" ] || make_work
    one=$(parameters 1) two=$(parameters 2)
    for moments in fp32 bf16; do
        adama=$(depth adama $moments) adamw=$(depth adamw $moments)
        awk -v a="$adama" -v w="$adamw" -v m=$moments -v h="$host" -v one="$one" -v two="$two" -v bytes="${bytes%B}" 'BEGIN {
            plain = int((bytes / 16 - one) / (two - one)) + 1
            printf "layers of width 768 in %s of host memory, 8 parts, moments %s: AdamA %d, AdamW %d; at 16 bytes a parameter " \
                "and nothing else %d: %.2f\n", h, m, a, w, plain, a / plain }'
    done
fi
