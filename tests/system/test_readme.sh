#!/usr/bin/env bash
# The commands of README.md's worked session and memory promise, of proto/plan/README.md and of device/cuda/README.md, in
# their order, each as it stands there but for a 50th of the steps, in a folder that looks like a clone in which
# tools/quickstart.sh has built. What README.md says that they print of memory, they print. Blocks of indented lines are what a reader pastes. After a block that leaves something
# running in the background, the script waits until that shows, as a reader would.
#
# usage: tests/system/test_readme.sh BUILD_DIRECTORY
set -euo pipefail

source=$(realpath "$(dirname "$0")/../..") build=$(realpath "$1")
work=$(mktemp -d)
export XDG_RUNTIME_DIR=$work/runtime
# shellcheck disable=SC2317
clean_up() {
    "$build/bin/eps" stop lab >/dev/null 2>&1 || true
    wait
    rm -rf "$work"
}
trap clean_up EXIT
fail() {
    echo "test_readme: $*" >&2
    exit 1
}

mkdir -m 700 "$XDG_RUNTIME_DIR"
mkdir -p "$work/clone/build"
cd "$work/clone"
ln -s "$source"/* . 2>/dev/null || true # build/ stands already
rm -rf runs
ln -s "$build/bin" build/bin
tools/quickstart_text.sh build/quickstart.txt build/held-out.txt

# The functions that the tour in eps/README.md names are where it says.
tour=0
while IFS='|' read -r _ file names _; do
    file=$(tr -d ' `' <<<"$file")
    [ -e "$file" ] || fail "eps/README.md names $file, which is not there"
    for name in $(grep -o '`[a-z_]*`' <<<"$names" | tr -d '`'); do
        grep -rqw -- "$name" "$file" || fail "eps/README.md: $file has no $name"
        tour=$((tour + 1))
    done
done < <(grep -E '^\| `[a-z]+/[a-z_/.]+` \|' eps/README.md)
[ "$tour" -ge 20 ] || fail "eps/README.md has too few functions"

# One line for each command, however many it has, and an empty one where a block ends.
awk 'FNR == 1 { fenced = 0; on = FILENAME != "README.md" }
     /^## / && FILENAME == "README.md" { on = /A worked session|The memory promise/ }
     /^```/ { fenced = !fenced } # output
     on && !fenced && /^    / { goes_on = sub(/ *\\$/, ""); printf "%s%s", substr($0, 5), goes_on ? "" : "\n"; open = 1; next }
     open { print ""; open = 0 }' README.md proto/plan/README.md device/cuda/README.md >"$work/commands"
awk '!/&$/ && match($0, /--steps [0-9]+/) { # what goes on in the background is stopped
         steps = substr($0, RSTART + 8, RLENGTH - 8) + 0
         if (steps >= 100)
             $0 = substr($0, 1, RSTART + 7) int(steps / 50) substr($0, RSTART + RLENGTH)
     }
     { print }' "$work/commands" >"$work/shorter"
mv "$work/shorter" "$work/commands"
command -v gnuplot >/dev/null || sed -i '/eps report/d' "$work/commands"
[ "$(grep -c . "$work/commands")" -ge 10 ] || fail "README.md's worked session has too few commands"

state() { build/bin/eps status lab --json 2>/dev/null | grep -E '"(state|workers)"' || true; }
# Until what was started in the background shows: the daemon, its worker, the first step.
settle() {
    local i
    for ((i = 0; i < 2400; i++)); do
        case $(state) in
        *loading*) ;;
        *'"workers": 0'*) ;;
        "$1" | "") ;;
        *) return ;;
        esac
        read -rt 0.05 <> <(:) || true
    done
    fail "nothing came of what was started in the background"
}

before=$(state) background=no
while IFS= read -r command <&3; do
    if [ -z "$command" ]; then
        if [ "$background" = yes ]; then
            settle "$before"
            before=$(state) background=no
        fi
        continue
    fi
    echo "\$ $command"
    case $command in *'&') background=yes ;; esac
    eval "$command" >"$work/said" 2>&1 || fail "failed: $command: $(tail -n 5 "$work/said")"
    cat "$work/said" >>"$work/all"
done 3<"$work/commands"

# Figures of memory in README.md's output: lines that begin so.
figures=$(sed -nE 's/^ +//; /^(plan|planned|memory) /{p;n;s/^ +//;/^host /p}' README.md)
sed -i 's/^ *//' "$work/all"
[ "$(grep -c . <<<"$figures")" -ge 6 ] || fail "README.md shows too few figures of memory"
while IFS= read -r line; do
    [ "$(nproc)" -eq 2 ] || break # what is kept depends on the number of cores
    grep -qxF -- "$line" "$work/all" || fail "README.md shows '$line', and no command printed it"
done <<<"$figures"

# A run has a directory of its own, wherever in README.md it is begun.
twice=$(grep -oE -- '--out [^ `]+' README.md | sort | uniq -d)
[ -z "$twice" ] || fail "README.md begins two runs with" $twice

# The table of published models: the planner's bytes, rounded as there.
config() { # TYPE VOCABULARY WIDTH INNER LAYERS HEADS KV_HEADS MORE
    printf '{"model_type": "%s", "vocab_size": %d, "hidden_size": %d, "intermediate_size": %d, "num_hidden_layers": %d,
"num_attention_heads": %d, "num_key_value_heads": %d, "head_dim": 128, "max_position_embeddings": 8192, %s}' "$@" >model.json
}
gib() { awk -v bytes="$1" 'BEGIN { s = sprintf("%.0f", bytes / 2 ^ 30); print (length(s) > 3 ? substr(s, 1, 1) "," substr(s, 2) : s) }'; }
host() { build/bin/eps plan "${plan[@]}" --device-mem "$1" --json | sed -n 's/^{"host": {"current": \([0-9]*\).*/\1/p'; }
check() { # NAME
    plan=(--model model.json --device cuda --precision bf16 --seq 4096 --batch 16 --host-mem 2TiB)
    row=$(grep "^| $1 |" README.md)
    local least most smallest
    least=$(gib "$(host 80GiB)") most=$(gib "$(host 8GiB)")
    smallest=$(build/bin/eps plan "${plan[@]}" --minimum | awk '{ printf "%.1f", $1 / 2 ^ 30 }')
    [ "$row" = "| $1 | $least to $most GiB | $smallest GiB |" ] ||
        fail "README.md has '$row', and the planner $least to $most GiB, $smallest GiB"
}
config qwen3 151936 4096 12288 36 32 8 '"rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": false'
check Qwen3-8B
config gemma3_text 262208 5376 21504 62 32 16 '"query_pre_attn_scalar": 168, "sliding_window": 1024, "sliding_window_pattern": 6'
check "Gemma 3 27B"
config llama 128256 8192 28672 80 64 8 '"rope_theta": 5e5, "rms_norm_eps": 1e-5, "tie_word_embeddings": false'
check "Llama 3 70B"
echo "test_readme: all well"
