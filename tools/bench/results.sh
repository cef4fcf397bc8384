#!/usr/bin/env bash
# Tables of what comparisons have finished (tools/bench/results/README.md): for each setting and arm the figures of each seed,
# and their difference to the setting's first arm, paired by seed, with its interval (tools/bench/paired.awk).
#
# usage: tools/bench/results.sh [FILE...]      default: tools/bench/results/*.jsonl
set -euo pipefail
shopt -s inherit_errexit nullglob
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

case ${1-} in
--help | -h) take_options '' --help ;;
-*) misuse "unknown option $1 (see --help)" ;;
esac
[ $# -gt 0 ] || set -- tools/bench/results/*.jsonl

# arms: those of $setting, in the order in which they come first
arms() {
    grep -F "{\"setting\": \"$setting\", " "$finished" | text_of arm | awk '!seen[$0]++'
}

# pairs ARM FIRST: the figures of both, for each seed that one machine has of both
pairs() {
    local seed there mine
    while read -r seed; do
        while read -r there; do
            mine=$(known "$1" "$seed" "$there") || continue
            echo "$mine $(known "$2" "$seed" "$there")"
            break
        done < <(lines_of "$2" "$seed" | text_of machine)
    done < <(grep -F "{\"setting\": \"$setting\", \"arm\": \"$2\", " "$finished" | sed 's/.*"seed": \([0-9]*\),.*/\1/' | sort -nu)
}

# row ARM FIRST
row() {
    local both i=0 name n
    both=$(pairs "$1" "$2")
    [ -n "$both" ] || { echo "| $1 | none beside the first arm |$(for name in $figures; do printf ' |'; done)"; return; }
    n=$(wc -w <<<"$figures")
    printf '| %s | %s |' "$1" "$(wc -l <<<"$both")"
    for name in $figures; do
        i=$((i + 1))
        awk -v i=$i '{ printf "%s%.4f", (NR > 1 ? ", " : " "), $i }' <<<"$both"
        [ "$1" = "$2" ] || printf '; %s' "$(difference $i $((i + n)) <<<"$both")"
        printf ' |'
    done
    echo
}

for finished in "$@"; do
    [ -r "$finished" ] || misuse "no $finished"
    while read -r setting; do
        printf '\n%s: %s\n\n' "$(basename "$finished" .jsonl)" "$setting"
        line=$(grep -F "{\"setting\": \"$setting\", " "$finished" | head -n 1)
        figures=$(grep -oE '"(accuracy|loss|bleu)": ' <<<"$line" | tr -d '":' | tr '\n' ' ')
        echo "| arm | seeds |$(for name in $figures; do printf ' %s |' "$name"; done)"
        echo "|---|---|$(for name in $figures; do printf -- '---|'; done)"
        first=$(text_of arm <<<"$line")
        while read -r name; do row "$name" "$first"; done < <(arms)
    done < <(text_of setting <"$finished" | awk '!seen[$0]++')
done
