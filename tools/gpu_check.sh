#!/usr/bin/env bash
# Proves on a GPU what cannot be proven without one, in parts that run separately, each in less than 8 minutes. Needs the
# CUDA toolkit, and no network: what else building needs is gathered beforehand by tools/gpu_prepare.sh. Findings are
# added up in --out over several calls; `record` then writes the next dated entry of tests/gpu/RECORD.md.
#
# usage: tools/gpu_check.sh [options] PART...        defaults in brackets
#   --out DIR [build/gpu]      results.txt: a line PART|NAME|VERDICT|TEXT for each finding; log.txt: all that was said
#   --bin DIR [build/cuda/bin] the programs; `build` puts them there
#   --python PATH [python3]    one that has PyTorch, for the peers
#   --seconds N [86400]        no part runs longer than what is left of these; one that does not begin is told
#   --simulate DIR             in place of a GPU the simulator's build of the backend, DIR/eps-cuda.so, at tiny sizes: tries
#                              the parts themselves out, proves nothing and is never recorded
#
# parts, in order of worth: probe build conformance training products rows copies attention relay large depth small
# sanitizer; all is all of these; record writes the entry (--record FILE [tests/gpu/RECORD.md]).
#
# Exit status: 0 if all that ran passed, 1 if something failed or fell short, 2 misused.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. tools/bench/common.sh

all_parts=(probe build conformance training products rows copies attention relay large depth small sanitizer)
limit=470 # of a part, in seconds

options=() parts=()
while [ $# -gt 0 ]; do
    case "$1" in
    --help | -h) awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' tools/gpu_check.sh; exit ;;
    --*) options+=("$1" "${@:2:1}"); shift ;;
    all) parts+=("${all_parts[@]}") ;;
    *) parts+=("$1") ;;
    esac
    [ $# -eq 0 ] || shift
done
out=build/gpu bin=build/cuda/bin python=python3 seconds=86400 simulate='' record=tests/gpu/RECORD.md
take_options "out bin python seconds simulate record" "${options[@]}"
[[ $seconds =~ ^[1-9][0-9]*$ ]] || misuse "--seconds $seconds is not a number of seconds"
[ ${#parts[@]} -gt 0 ] || misuse "name parts: ${all_parts[*]} all record"
for part in "${parts[@]}"; do
    [[ " ${all_parts[*]} record " == *" $part "* ]] || misuse "$part is not one of: ${all_parts[*]} all record"
done
[ -z "$simulate" ] || [ -e "$simulate/eps-cuda.so" ] || misuse "--simulate $simulate: there is no eps-cuda.so"

mkdir -p "$out" || exit 1
results=$out/results.txt log=$out/log.txt
touch "$results"
export out bin python simulate record results log

if [ -z "$simulate" ] && [ "${parts[*]}" != record ]; then
    if ! gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>&1); then
        echo "gpu_check.sh: no GPU: nvidia-smi, which would name it, $(command -v nvidia-smi >/dev/null && echo "says: ${gpu%%$'\n'*}" ||
            echo "is not there")" >&2
        exit 1
    fi
fi

# count VERDICT LINES...: how many of them have it
count() {
    awk -F '|' -v verdict="$1" '$3 == verdict { n++ } END { print n + 0 }' <<<"$2"
}

worst=0 summary=()
for part in "${parts[@]}"; do
    left=$((seconds - SECONDS)) began=$SECONDS
    if [ "$left" -le 5 ]; then
        summary+=("$part: not begun, no time is left")
        worst=1
        continue
    fi
    if [ "$part" = record ]; then
        bash tools/gpu/record.sh || worst=1
        continue
    fi
    echo "== $part"
    sed -i "/^$part|/d" "$results"
    mine=$((left - 5 < limit ? left - 5 : limit))
    part=$part allowed=$mine timeout -k 10 "$mine" bash tools/gpu/part.sh
    rc=$?
    if [ $rc -ne 0 ]; then
        why="ended with status $rc: the end of $log says more"
        [ $rc -eq 124 ] || [ $rc -eq 137 ] && why="took longer than $mine s"
        echo "$part|$part-ends|failed|the part $part $why" | tee -a "$results"
    fi
    lines=$(grep "^$part|" "$results")
    failed=$(($(count failed "$lines") + $(count short "$lines")))
    summary+=("$part: $(count passed "$lines") passed, $(count failed "$lines") failed, $(count short "$lines") fell short,$(
        ) $(count missing "$lines") missing, $((SECONDS - began)) s")
    [ "$failed" -eq 0 ] || worst=1
done
[ ${#summary[@]} -eq 0 ] || printf '%s\n' "-- findings in $results" "${summary[@]}"
exit $worst
