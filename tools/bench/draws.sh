#!/usr/bin/env bash
# What the ways to choose tokens for a gradient are worth on a trained model (WTA-CRS, arXiv:2305.15265): by layer, the error of
# column-row sampling (rule=none), of the paper's winners and draws (rule=paper), of those for less variance (rule=variance), and
# of the largest terms alone (rule=all). Errors are mean squares of the distance to the exact gradient of the same minibatch, of
# its own square: of the first three, which are unbiased, all is variance; of the last, which draws nothing, all is bias. From
# the engine's own draws, by eps report --bias --draws. Prints a table in Markdown, and draws it if gnuplot is installed.
#
# usage: tools/bench/draws.sh [options]     defaults in brackets
#   --run DIR []          a run, whose checkpoint `latest` is measured; otherwise one is trained on the licences
#   --keep DIR []         where that stays, and what was measured, which is not measured again
#   --steps N [750]       of it
#   --shares "X ..." [0.1 0.3]   of the tokens
#   --draws N [40]        of each form
#   --out FILE []         the picture, SVG
#   --device NAME [cpu] --memory SIZE []   of the steps
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

run='' keep='' steps=750 shares='0.1 0.3' draws=40 out='' bin=build/bin
rules=(none paper variance all)
take_options "run keep steps shares draws out device memory bin" "$@"
need_programs "$bin"
make_work
keep=${keep:-$work}
mkdir -p "$keep"

if [ -z "$run" ]; then
    [ -e "$keep/text" ] || tools/bench/licences_text.sh "$keep/text" "$keep/held"
    train_once "$keep/run" --data "$keep/text" --steps "$steps" --keep 1
    run=$keep/run
fi
[ -e "$run/latest" ] || misuse "--run $run holds no checkpoint"
checkpoint=$run/$(readlink "$run/latest")

# measure SHARE RULE: "LAYER ERROR" in lines, where ERROR is of the exact gradient's square
measure() {
    local of=("$draws") told=$work/told
    [ "$2" != all ] || of=(1)
    on_device report "$checkpoint" --bias --approximate "wta=$1,rule=$2" --draws "${of[0]}" --json >"$told"
    tr '{' '\n' <"$told" | awk -F '"' -v rule="$2" '
        /"layer"/ {
            for (i = 2; i < NF; i += 2) if ($i == "layer") name = $(i + 2)
            match($0, /"exact_norm": [^,}]*/); exact = substr($0, RSTART + 14, RLENGTH - 14)
            key = rule == "all" ? "\"off\": " : "\"noise\": "
            at = index($0, key); error = substr($0, at + length(key)) + 0
            if (exact > 0 && name != "other") printf "%s %.6g\n", name, (error / exact) ^ 2
        }'
}

for share in $shares; do
    for rule in "${rules[@]}"; do
        file=$keep/$draws-$share-$rule
        [ -e "$file" ] || { measure "$share" "$rule" >"$file.part" && mv "$file.part" "$file"; }
    done
    paste -d ' ' "${rules[@]/#/$keep/$draws-$share-}" | awk -v share="$share" '
        NR == 1 { printf "| %s of the tokens | column-row sampling | WTA-CRS | less variance | the largest alone: bias | WTA-CRS, of column-row sampling |\n|---|---|---|---|---|---|\n", share }
        { printf "| %s | %.4f | %.4f | %.4f | %.4f | %.2f |\n", $1, $2, $4, $6, $8, $4 / $2 }'
    echo
done
echo "step ${checkpoint##*-}, $draws draws of each; a variance is known to $(awk -v n="$draws" 'BEGIN { printf "%.0f", 100 * sqrt(2 / (n - 1)) }') % where the noise has one direction, and better where it has many"

[ -z "$out" ] || ! command -v gnuplot >/dev/null || {
    {
        echo "set terminal svg size 900,400; set output '$out'; set logscale y; set xtics 1; set key outside bottom center horizontal"
        echo "set multiplot layout 1,$(wc -w <<<"$shares"); set xlabel 'block'; set ylabel 'error, of the square of the gradient'"
        for share in $shares; do
            echo "set title '$share of the tokens'"
            printf 'plot'
            separator=' '
            for rule in "${rules[@]}"; do
                case $rule in
                none) title='column-row sampling' ;;
                paper) title=WTA-CRS ;;
                variance) title='less variance' ;;
                all) title='the largest alone (bias)' ;;
                esac
                printf "%s'< grep -v ^all %s' using 0:2 with linespoints title '%s'" "$separator" "$keep/$draws-$share-$rule" "$title"
                separator=', '
            done
            echo
        done
    } | gnuplot
}
