#!/usr/bin/env bash
# Proves on a GPU what cannot be proven without one. It is made for a machine that is lent for minutes: each call works by
# itself, needs no network, and leaves one file of findings; `record` combines the files of several calls. It runs the
# programs that tools/gpu_prepare.sh --build left in gpu/, if they start here and match these sources. Otherwise it builds
# them first, which needs the CUDA toolkit.
#
# usage: tools/gpu_check.sh [OPTION...] first|second|third|all|PART...       defaults in brackets
#        tools/gpu_check.sh [--record FILE] record RESULTS...
#   --out DIR [build/gpu]      CALL.txt, named after the parts: a line PART|NAME|VERDICT|TEXT for each finding;
#                              CALL.log: all output; traces of runs
#   --bin DIR                  the programs, if not in gpu/bin or build/cuda/bin, where the part build puts them
#   --python PATH [python3]    a Python with PyTorch, for the peers
#   --seconds N                time limit of the call; parts that do not begin in time are reported
#                              [560 for each of first, second and third; else none]
#   --simulate DIR             uses the simulator's backend, DIR/eps-cuda.so, in place of a GPU, at tiny sizes: tests the
#                              parts themselves, proves nothing and is never recorded
#   --record FILE              [tests/gpu/RECORD.md], where record adds an entry
#
# first, second and third take at most 560 s each, also one after another in one call, and hold these parts, what settles the
# most first:
#   first    computes profile gpt2 fsdp2 qwen25 qwen8b
#   second   lengths bert t5
#   third    conformance memcheck products training convolutions
# By name, and in all, there are also: probe qwen3 large copies relay rows depth attention larger small families sanitizer. build
# only builds. A part that hangs is ended at its own limit; its findings are kept. A part that is named alone has 550 s.
#
# Exit status: 0 if everything that ran passed, 1 if something failed or fell short, 2 for wrong usage.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. tools/bench/common.sh
. tools/gpu/programs.sh

first=(computes profile gpt2 fsdp2 qwen25 qwen8b)
second=(lengths bert t5)
third=(conformance memcheck products training convolutions)
others=(probe qwen3 large copies relay rows depth attention larger small families sanitizer)
all_parts=(build "${first[@]}" "${second[@]}" "${third[@]}" "${others[@]}")
# Seconds. The limits of a call add up to at most 550, so a part that hangs takes no time from later ones.
declare -A limit=([build]=470
    [computes]=120 [profile]=60 [gpt2]=100 [fsdp2]=75 [qwen25]=130 [qwen8b]=60
    [lengths]=200 [bert]=150 [t5]=150
    [conformance]=185 [memcheck]=40 [products]=45 [training]=90 [convolutions]=185
    [probe]=85 [qwen3]=60 [large]=190 [copies]=25 [relay]=150 [rows]=30 [depth]=105
    [attention]=85 [larger]=160 [small]=150 [families]=30 [sanitizer]=80)

options=() parts=() files=() call='' lent=''
while [ $# -gt 0 ]; do
    case "$1" in
    --help | -h) awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' tools/gpu_check.sh; exit ;;
    --*) options+=("$1" "${@:2:1}"); shift ;;
    record) call=record files=("${@:2}"); break ;;
    first) parts+=("${first[@]}") call+=-first lent=$((lent + 560)) ;;
    second) parts+=("${second[@]}") call+=-second lent=$((lent + 560)) ;;
    third) parts+=("${third[@]}") call+=-third lent=$((lent + 560)) ;;
    all) parts+=("${all_parts[@]:1}") call+=-all ;;
    *) parts+=("$1") call+=-$1 ;;
    esac
    [ $# -eq 0 ] || shift
done
call=${call#-}
out=build/gpu bin='' python=python3 seconds='' simulate='' record=tests/gpu/RECORD.md
take_options "out bin python seconds simulate record" "${options[@]}"
times=1
[ -z "$simulate" ] || lent='' times=20 # it is slow, and lent by nobody
seconds=${seconds:-${lent:-86400}}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || misuse "--seconds $seconds is not a number of seconds"
[ -n "$call" ] || misuse "name what to run: first second third all record, or parts: ${all_parts[*]}"
if [ "$call" = record ]; then
    [ ${#files[@]} -gt 0 ] || misuse "name the files of findings to record"
    record=$record exec bash tools/gpu/record.sh "${files[@]}"
fi
for part in "${parts[@]}"; do
    [[ " ${all_parts[*]} " == *" $part "* ]] || misuse "$part is not one of: first second third all record ${all_parts[*]}"
done
[ -z "$simulate" ] || [ -e "$simulate/eps-cuda.so" ] || misuse "--simulate $simulate: there is no eps-cuda.so"

[ ${#parts[@]} -gt 1 ] || [ "${parts[0]}" = build ] || limit[${parts[0]}]=550

mkdir -p "$out" || exit 1
results=$out/$call.txt log=$out/$call.log
gpu=simulated
if [ -z "$simulate" ] && ! gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>&1); then
    echo "gpu_check.sh: no GPU: nvidia-smi, which would name it, $(command -v nvidia-smi >/dev/null && echo "says: ${gpu%%$'\n'*}" ||
        echo "is not there")" >&2
    exit 1
fi
: >"$results"
: >"$log"
export out bin python simulate results log

part=call
{
    echo "call|gpu|fact|${gpu%%$'\n'*}"
    echo "call|commit|fact|$(commit)"
    [ -z "$simulate" ] || echo "call|simulated|fact|nothing here was run on a GPU"
} | tee -a "$results"
choose_programs
[ -z "$build_first" ] || parts=(build "${parts[@]}")

# count VERDICT LINES...: number of lines with this verdict
count() {
    awk -F '|' -v verdict="$1" '$3 == verdict { n++ } END { print n + 0 }' <<<"$2"
}

# Every process that a part started, daemons included, ends with it: the next part needs the device and the memory. This
# variable in the environment marks the part's processes.
end_all() {
    local process
    while read -r process; do
        process=${process#/proc/}
        kill -KILL "${process%/environ}" 2>/dev/null
    done < <(grep -lszx "gpu_check=$$" /proc/[0-9]*/environ)
}

worst=0 summary=()
for part in "${parts[@]}"; do
    left=$((seconds - SECONDS)) began=$SECONDS why=''
    [ "$left" -gt 5 ] || why="no time is left"
    [ "$part" = build ] || [ "$part" = probe ] || [ -x "$bin/eps" ] || why="there are no programs"
    if [ -n "$why" ]; then
        summary+=("$part: not begun, $why")
        worst=1
        continue
    fi
    echo "== $part"
    most=$((times * limit[$part])) mine=$((left - 5 < most ? left - 5 : most))
    gpu_check=$$ part=$part allowed=$mine timeout -k 10 "$mine" bash tools/gpu/part.sh
    rc=$?
    end_all
    lines=$(grep "^$part|" "$results")
    if [ $rc -eq 124 ] || [ $rc -eq 137 ]; then
        had="$(grep -c . <<<"$lines") findings before"
        verdict=failed
        [ "$mine" -eq "$most" ] || verdict=missing # it may not be to blame
        echo "$part|$part-ends|$verdict|the part $part took longer than $mine s, and was cut off; $had" | tee -a "$results"
        worst=1
    elif [ $rc -ne 0 ]; then
        echo "$part|$part-ends|failed|the part $part ended with status $rc: the end of $log says more" | tee -a "$results"
    fi
    lines=$(grep "^$part|" "$results")
    failed=$(($(count failed "$lines") + $(count short "$lines")))
    summary+=("$part: $(count passed "$lines") passed, $(count failed "$lines") failed, $(count short "$lines") fell short,$(
        ) $(count missing "$lines") missing, $((SECONDS - began)) s")
    [ "$failed" -eq 0 ] || worst=1
done
[ ${#summary[@]} -eq 0 ] || printf '%s\n' "-- findings in $results, $SECONDS s of $seconds" "${summary[@]}"
exit $worst
