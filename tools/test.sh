#!/usr/bin/env bash
# Every check that a change must pass, from a bare Debian 12 on: format, headers that compile alone, include rules, 2
# seconds of each fuzz target, and all tests. The last line is "N passed, N failed"; the exit status is 0 if nothing
# failed. The programs' output is in build/test-PRESET.log.
#
# usage: tools/test.sh [PRESET...]      presets: fuzz and release by default; asan and tsan, the sanitizers; debug; clang;
#                                       sanitized: for 12 minutes at most, of asan or tsan the programs that have not run
#                                       for longest (tests/sanitized.txt), and says what it leaves out
#        tools/test.sh --record PRESET...   puts the date beside programs of asan and tsan that have passed
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

default_presets=(fuzz release)
more_presets=(asan tsan debug clang sanitized)
record=false
case "${1-}" in
--help | -h) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit ;;
--record) record=true; shift ;;
esac
presets=("${@:-${default_presets[@]}}")
for preset in "${presets[@]}"; do
    if [[ " ${default_presets[*]} ${more_presets[*]} " != *" $preset "* ]]; then
        echo "test.sh: $preset is not one of: ${default_presets[*]} ${more_presets[*]}" >&2
        exit 2
    fi
done

passed=0 failed=0 skipped=0

# count NAME PASSED FAILED SKIPPED: one line of the report, added to the sums
count() {
    passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
    printf '%-8s %5d ok, %d not, %d s\n' "$1" "$2" "$3" $((SECONDS - began))
}

# Sources with suffix .$1; several as "c|h".
sources() {
    find client device eps proto tests tools -type f -regextype egrep -regex ".*\.($1)" | sort
}

check_format() {
    sources 'c|h|cpp|hpp|cu|cuh' | xargs -P "$(nproc)" -n 50 clang-format --dry-run -Werror
}

# Each as a source of its own. CUDA headers are the simulator's, which every machine has.
check_headers() {
    local -a each=(xargs -P "$(nproc)" -n 20) options=(-D_GNU_SOURCE -I. -Itests/sim/include -Wall -Wextra -Wshadow
                                                       -Wconversion -Werror -fsyntax-only)
    local rc=0

    sources h | "${each[@]}" gcc -std=gnu11 "${options[@]}" -x c || rc=1
    sources 'hpp|cuh' | "${each[@]}" g++ -std=gnu++17 "${options[@]}" -Wno-unknown-pragmas -x c++ || rc=1
    return $rc
}

# summarise LOG: "passed failed skipped" of what `ctest -V` printed
summarise() { awk -f tools/summary.awk "$1"; }

steady=() # this thread sanitizer fails with fully randomised addresses
! setarch -R true 2>/dev/null || steady=(setarch -R)

# build PRESET LOG: fails after telling what the compiler said, and counting it
build() {
    local -a code=(-DCMAKE_COMPILE_WARNING_AS_ERROR=ON)

    # machine code of all generations takes nvcc twice as long as that of one
    [ "$1" != release ] || [ -e build/CMakeCache.txt ] || command -v nvidia-smi >/dev/null ||
        code+=(-DEPS_CUDA_CODE=sm_90,compute_80) # programs from here begin slowly on other devices
    mkdir -p build
    if ! { cmake --preset "$1" "${code[@]}" && cmake --build --preset "$1"; } >"$2" 2>&1; then
        grep -E -A 3 'FAILED: |error: |CMake Error' "$2" | head -n 40
        echo "$1: the whole output is in $2"
        count "$1" 0 1 0
        return 1
    fi
    rm -f build/"$1"/reports/*
}

# tell NAME PRESET LOG: counts what is in the log, after the lines that say what failed
tell() {
    local log=$3 reports=build/$2/reports
    local -a totals

    read -ra totals < <(summarise "$log")
    if [ "${totals[1]}" -ne 0 ]; then
        grep -E '^[0-9]+: (.*:[FE]:|test_[a-z_]+: )|ERROR: .*Sanitizer|WARNING: ThreadSanitizer|runtime error|\*\*\*' "$log" |
            grep -v ': all well$' | head -n 40
        cat "$reports"/* 2>/dev/null | grep -A 8 'WARNING: ThreadSanitizer' | head -n 40
        echo "$1: the whole output is in $log$([ ! -d "$reports" ] || echo ", the sanitizer's in $reports")"
    fi
    count "$1" "${totals[@]}"
}

# Release runs everything. The others leave out tests that mean nothing there or would only be slow, by their labels
# (CMakePresets.json).
run_preset() {
    local log=build/test-$1.log

    build "$1" "$log" || return
    "${steady[@]}" ctest --preset "$1" -V -j $((3 * $(nproc))) >"$log" 2>&1 # most of them mostly wait
    tell "$1" "$1" "$log"
    case $1 in
    asan | tsan) list_tests "$1" | note_run "$1" "$log" ;;
    esac
}

# ---- sanitized programs, a few at a time ----

dates=tests/sanitized.txt

# list_tests PRESET: "program test" of each test that is built; a script's program is the test itself
list_tests() {
    ctest --preset "$1" -N -V | awk '
        / Test command: / { command = $4; gsub(/"/, "", command) }
        / Test +#[0-9]+: / { print command, $NF }' |
        while read -r command test; do
            program=$(basename "$(realpath "$command")")
            [[ $command == "$PWD"/build/*/bin/* && $program != patience ]] || program=$test
            echo "$program $test"
        done
}

# oldest PRESET: programs, those first that have not run for longest, in another order each day
oldest() {
    list_tests "$1" | cut -d ' ' -f 1 | sort -u | while read -r program; do
        date=$(awk -v preset="$1" -v program="$program" '$1 == preset && $2 == program { print $3 }' $dates)
        echo "${date:-0000-00-00} $(echo "$program $(date +%F)" | cksum | cut -d ' ' -f 1) $program"
    done | sort | cut -d ' ' -f 3
}

# note_run PRESET LOG: with --record, today's date for programs of standard input's "program test" all of whose tests passed
note_run() {
    $record || return 0
    awk -v preset="$1" -v today="$(date +%F)" -v dates=$dates '
        FILENAME == ARGV[1] { if (match($0, / Test +#[0-9]+: [^ ]+ .* (Passed|\*\*\*Skipped) /)) { split($0, at, /#[0-9]+: /); split(at[2], name, " "); fine[name[1]] = 1 }; next }
        FILENAME == ARGV[2] { if ($1 == "#") head = head $0 "\n"; else date[$1 " " $2] = $3; next }
        { seen[$1] = 1; if (!fine[$2]) bad[$1] = 1 }
        END {
            for (program in seen) if (!bad[program]) date[preset " " program] = today
            printf "%s", head >dates
            close(dates) # before the others follow, from another process
            for (key in date) print key, date[key] | "sort >>" dates
        }' "$2" $dates -
}

# Of the sanitizer whose oldest run is older; of one, as building takes long.
run_sanitized() {
    local until=$((SECONDS + 12 * 60)) log=build/test-sanitized.log preset left
    local -a programs tests

    preset=$(awk '$1 != "#" && !($1 in first && first[$1] <= $3) { first[$1] = $3 }
                  END { print first["tsan"] < first["asan"] ? "tsan" : "asan" }' $dates)
    build "$preset" "$log" || return
    mapfile -t programs < <(oldest "$preset")
    list_tests "$preset" >build/test-programs.txt
    : >"$log"
    while [ ${#programs[@]} -gt 0 ] && left=$((until - SECONDS)) && [ $left -gt 0 ]; do
        mapfile -t tests < <(awk 'NR == FNR { wanted[$1] = 1; next } $1 in wanted { print $2 }' \
            <(printf '%s\n' "${programs[@]:0:6}") build/test-programs.txt)
        timeout -k 30 $left "${steady[@]}" ctest --preset "$preset" -V -j $((3 * $(nproc))) \
            -R "^($(IFS='|'; echo "${tests[*]}"))\$" >>"$log" 2>&1
        [ $? -ne 124 ] || break # these are left out
        programs=("${programs[@]:6}")
    done
    if grep -qE ' Test +#[0-9]+: .* sec' "$log"; then
        tell sanitized "$preset" "$log"
    else
        count sanitized 0 0 1 # building took the time
    fi
    echo "         $preset; left out: ${programs[*]:-nothing}"
    awk 'NR == FNR { left[$1] = 1; next } !($1 in left)' <(printf '%s\n' "${programs[@]}") build/test-programs.txt |
        note_run "$preset" "$log"
}

# Counts targets. tests/fuzz/run.sh says why it cannot run, and what was found.
run_fuzz() {
    local log=build/test-fuzz.log rc=0
    local found ran

    mkdir -p build
    tests/fuzz/run.sh >"$log" 2>&1 || rc=$?
    ran=$(grep -c ' runs, ' "$log")
    found=$(grep -c '^replay: ' "$log")
    [ $rc -eq 0 ] || grep -v ' runs, ' "$log"
    if [ $rc -eq 77 ]; then
        count fuzz 0 0 1
    else
        count fuzz "$ran" $((rc != 0 && found == 0 ? 1 : found)) 0
    fi
}

# check NAME COMMAND: one test by itself
check() {
    local name=$1
    shift
    began=$SECONDS
    if "$@"; then
        count "$name" 1 0 0
    else
        count "$name" 0 1 0
    fi
}

tools/setup.sh --tests || exit 1
check format check_format
check headers check_headers
check rooms tools/rooms.sh
for preset in "${presets[@]}"; do
    began=$SECONDS
    case $preset in
    fuzz) run_fuzz ;;
    sanitized) run_sanitized ;;
    *) run_preset "$preset" ;;
    esac
done

echo "$passed passed, $failed failed$([ $skipped -eq 0 ] || echo ", $skipped skipped")"
[ $failed -eq 0 ]
