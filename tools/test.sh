#!/usr/bin/env bash
# Every check that a change must pass, from a bare Debian 12 on: format, headers that compile alone, include rules, 2
# seconds of each fuzz target, and all tests. The last line is "N passed, N failed"; the exit status is 0 if nothing
# failed. The programs' output is in build/test-PRESET.log.
#
# usage: tools/test.sh [PRESET...]      presets: fuzz and release by default; asan and tsan, the sanitizers; debug; clang
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

default_presets=(fuzz release)
more_presets=(asan tsan debug clang)
case "${1-}" in
--help | -h) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit ;;
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

# summarise LOG: "passed failed skipped" of what `ctest -V` printed. The unit is one test of Check, as in its line
# "100%: Checks: 8, Failures: 0, Errors: 0"; a program without such a line, or one that fails after it, counts as one.
summarise() {
    awk '
        match($0, /^[0-9]+: [0-9]+%: Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/) {
            split(substr($0, 1, RLENGTH), field, /[^0-9]+/)
            checks[field[1]] += field[3]; bad[field[1]] += field[4] + field[5]
        }
        match($0, /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: /) {
            split(substr($0, 1, RLENGTH), field, "#")
            id = field[2] + 0
            ok = checks[id] - bad[id]
            if (/\*\*\*Skipped/) { skipped++; next }
            failed += bad[id]
            passed += ok
            if (/ Passed /) { if (!checks[id]) passed++ }
            else if (!bad[id]) failed++
            programs++
        }
        END { print passed + 0, failed + (programs || skipped ? 0 : 1), skipped + 0 } # no test at all is a failure' "$1"
}

# This thread sanitizer fails with fully randomised addresses.
steady() {
    if setarch -R true 2>/dev/null; then
        setarch -R "$@"
    else
        "$@"
    fi
}

# Release runs everything. The others leave out tests that mean nothing there or would only be slow, by their labels
# (CMakePresets.json).
run_preset() {
    local preset=$1 log=build/test-$1.log reports=build/$1/reports
    local -a totals code=()

    # machine code of all generations takes nvcc twice as long as that of one
    [ "$preset" != release ] || [ -e build/CMakeCache.txt ] || command -v nvidia-smi >/dev/null ||
        code=(-DEPS_CUDA_CODE=sm_90,compute_80) # programs from here begin slowly on other devices

    mkdir -p build
    if ! { cmake --preset "$preset" "${code[@]}" && cmake --build --preset "$preset"; } >"$log" 2>&1; then
        grep -E -A 3 'FAILED: |error: |CMake Error' "$log" | head -n 40
        echo "$preset: the whole output is in $log"
        count "$preset" 0 1 0
        return
    fi
    rm -f "$reports"/*
    steady ctest --preset "$preset" -V -j $((3 * $(nproc))) >"$log" 2>&1 # most of them mostly wait
    read -ra totals < <(summarise "$log")
    if [ "${totals[1]}" -ne 0 ]; then
        grep -E '^[0-9]+: .*:[FE]:|ERROR: .*Sanitizer|WARNING: ThreadSanitizer|runtime error|\*\*\*' "$log" |
            head -n 40
        cat "$reports"/* 2>/dev/null | grep -A 8 'WARNING: ThreadSanitizer' | head -n 40
        echo "$preset: the whole output is in $log$([ ! -d "$reports" ] || echo ", the sanitizer's in $reports")"
    fi
    count "$preset" "${totals[@]}"
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
    if [ "$preset" = fuzz ]; then run_fuzz; else run_preset "$preset"; fi
done

echo "$passed passed, $failed failed$([ $skipped -eq 0 ] || echo ", $skipped skipped")"
[ $failed -eq 0 ]
