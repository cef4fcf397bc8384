#!/usr/bin/env bash
# The commands of README.md and of the guides behind it, in their order, each as it stands there but for a 50th of the steps and
# a 30th of the epochs, in a folder that looks like a clone in which tools/quickstart.sh has built; small models and data stand in
# for those that a reader has (stand_ins.sh). What the pages say that they print of memory, they print. Blocks of indented lines, and
# fences without a language, are what a reader pastes; a comment "not run" says why one is left out. After a block that leaves
# something running in the background, the script waits until that shows, as a reader would. Programs in Python are run by
# tests/client/python/test_readme.py.
#
# usage: tests/system/test_readme.sh BUILD_DIRECTORY
set -euo pipefail

source=$(realpath "$(dirname "$0")/../..") build=$(realpath "$1")
pages=(README.md client/README.md client/python/README.md eps/README.md proto/README.md proto/plan/README.md device/cuda/README.md
    tools/bench/README.md tools/project/CHANGES.md tools/project/CONTRIBUTING.md tools/project/SECURITY.md)
work=$(mktemp -d)
export XDG_RUNTIME_DIR=$work/runtime HOME=$work/home
. "$source/tests/system/stand_ins.sh"
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

mkdir -m 700 "$XDG_RUNTIME_DIR" "$HOME"
mkdir -p "$work/clone/build" "$work/bin" "$work/models"
stand_in_models "$work/models" >"$work/said" 2>&1 || fail "no models: $(tail -n 5 "$work/said")"
stand_in_hf "$work/bin/hf" "$work/models"
cmake --install "$build" --prefix "$HOME/.local" >"$work/said" || fail "$(cat "$work/said")"
export PATH=$work/bin:$PATH
cd "$work/clone"
ln -s "$source"/* . 2>/dev/null || true # build/ stands already
rm -rf runs
ln -s "$build/bin" build/bin
tools/quickstart_text.sh build/quickstart.txt build/held-out.txt
stand_in_data

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

awk -f tests/system/blocks.awk "${pages[@]}" >"$work/commands"
awk '!/&$/ && match($0, /--steps [0-9]+/) { # what goes on in the background is stopped
         steps = substr($0, RSTART + 8, RLENGTH - 8) + 0
         if (steps >= 100)
             $0 = substr($0, 1, RSTART + 7) int(steps / 50) substr($0, RSTART + RLENGTH)
     }
     { sub(/--epochs 30 /, "--epochs 1 "); print }' "$work/commands" >"$work/shorter"
mv "$work/shorter" "$work/commands"
command -v gnuplot >/dev/null || sed -i '/eps report/d' "$work/commands"
[ "$(grep -c . "$work/commands")" -ge 60 ] || fail "the pages have too few commands"

state() { build/bin/eps status lab --json 2>/dev/null | grep -E '"(state|workers|commit)"' || true; }
# Until what was started in the background shows: a daemon with its worker; and the first step, if a run was started.
settle() { # RUN
    local i
    for ((i = 0; i < 2400; i++)); do
        case $(state) in
        *loading* | *'"workers": 0'* | "") ;;
        *'"commit": null'*) [ "$1" = no ] && return ;;
        *) return ;;
        esac
        read -rt 0.05 <> <(:) || true
    done
    fail "nothing came of what was started in the background"
}

background=no run=no
while IFS= read -r command <&3; do
    if [ -z "$command" ]; then
        [ "$background" = no ] || settle "$run"
        background=no run=no
        continue
    fi
    echo "\$ $command"
    case $command in
    *'&')
        background=yes
        case $command in *' train '*) run=yes ;; esac
        ;;
    esac
    eval "$command" >"$work/said" 2>&1 </dev/null || fail "failed: $command: $(tail -n 5 "$work/said")"
    cat "$work/said" >>"$work/all"
done 3<"$work/commands"

# Figures of memory in what the pages say that commands print: lines that begin so.
sed -i 's/^ *//' "$work/all"
figures=$(awk '/^```/ { on = $0 == "```text" } on && sub(/^ */, "") >= 0 && /^(plan|planned|memory|host) / ' "${pages[@]}")
[ "$(grep -c . <<<"$figures")" -ge 6 ] || fail "the pages show too few figures of memory"
while IFS= read -r line; do
    [ "$(nproc)" -eq 2 ] || break # what is kept depends on the number of cores
    case $line in *...) # a beginning
        grep -qF -- "${line%...}" "$work/all" || fail "a page shows '$line', and no command printed it"
        continue ;;
    esac
    grep -qxF -- "$line" "$work/all" || fail "a page shows '$line', and no command printed it"
done <<<"$figures"

# Figures that take longer than a minute to measure are those that were recorded: PAGE, its words, FILE, the words there. Planned
# ones are compared by tests/tools/test_figures.sh.
while IFS='@' read -r page words file recorded; do
    grep -qF -- "$words" "$page" || fail "$page does not say '$words'"
    grep -qF -- "$recorded" "$file" || fail "$page says '$words', and $file has not '$recorded'"
done <<'FIGURES'
README.md@| 10.3 GB | 112,769,024 bytes: 1/91 |@tools/bench/README.md@112,769,024 bytes, as planned; PyTorch 2.15 takes 10.3 GB: 1/91
README.md@| 6,367,260,672 bytes |@tools/bench/README.md@| PyTorch 2.15, gradient accumulation over microbatches | 6,367,260,672 |
README.md@| 139,302,912 bytes: 1/46 |@tools/bench/README.md@| eps, constant memory: activation checkpoints on the host | 139,302,912 |
README.md@a step takes 508 ms in@tools/bench/README.md@508 ms in the minimum, 30.6 MB
README.md@415 ms in 255 MB, the most that it can use@tools/bench/README.md@415 ms in 255 MB, the most it can use
README.md@| 475 TFLOP/s with 128 Ki tokens a step; 385 with 32 Ki, where the optimizer is the bottleneck |@tests/gpu/RECORD.md@| large-128k | passed | 474.8 (target 350)
README.md@| 475 TFLOP/s with 128 Ki tokens a step; 385 with 32 Ki, where the optimizer is the bottleneck |@tests/gpu/RECORD.md@| large-32k | passed | 384.7 (target 300)
README.md@839 ms for a step of 16 Ki tokens against 987: 1.18 times its speed@tests/gpu/RECORD.md@839.238383 ms a step; FSDP2 987.0 ms
README.md@it reached 0.85 of eps's speed@tests/gpu/RECORD.md@839.238383 ms a step; FSDP2 987.0 ms
README.md@1.21 times its speed; on an Intel Xeon 0.93@tools/bench/README.md@2686 against 2237: 1.21; 389 MiB against 1501 MiB. On an Intel Xeon 2.5 GHz 2021 against 2233: 0.93
README.md@0.84 of its speed@tools/bench/README.md@0.84 of its speed (2604 ms against 2187
README.md@1.23 times the error of PyTorch's fp32@tests/README.md@of 60 models (seed 1) median 1.23
README.md@killed 100 times, then resumed@tools/bench/README.md@killed (`SIGKILL`) 100 times at random instants, then resumed
README.md@tenth of a second@tools/bench/README.md@| 0.12 s; 0.24 s until a first step
client/README.md@worker limited to 43 MiB, beside 0.63 GiB@tools/bench/README.md@0.75 in 43.3 MiB of device memory and 650 MiB
client/README.md@59 MiB beside 1.9 GiB@tools/bench/README.md@0.82 in 58.8 MiB of device memory and 1.9 GiB
client/README.md@a step 1.15 to 1.27 times as fast@tools/bench/README.md@`wta=0.3` 1.15 (94.6 ms against 108.8) / 1.27 (676 against 855)
client/README.md@a step 1.06 to 1.12 times as fast@tools/bench/README.md@`pool=2` 1.06 (521 ms against 552); `pool=4` 1.09; `pool=8` 1.12
FIGURES

# A run has a directory of its own, wherever on these pages it is begun.
twice=$(cat "${pages[@]}" | grep -oE -- '--out [^ `]+|out="[^"]+"' | sort | uniq -d | grep -v -- '--out \(DIR\|runs/big\)$' || true)
[ -z "$twice" ] || fail "two runs begin with" $twice
echo "test_readme: all well"
