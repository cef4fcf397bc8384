# shellcheck shell=bash
# Runs the operations on small shapes under compute-sanitizer.
# shellcheck disable=SC2154

# watched NAME TOOL SECONDS TEST...: runs the tests under the tool and records its finding
watched() {
    local name=$1 tool=$2 seconds=$3 began=$SECONDS test
    local clean=() dirty=() late=()
    shift 3

    if [ -n "$simulate" ] || ! command -v compute-sanitizer >/dev/null; then
        missing "$name" "compute-sanitizer is not on the PATH"
        return
    fi
    for test in "$@"; do
        running="$name|nothing in ${clean[*]-}; was cut off in $test"
        if [ $((SECONDS - began)) -ge "$seconds" ]; then
            late+=("$test")
        elif limited $((seconds + began - SECONDS)) "${ours[@]}" EPS_TEST_CUDA="$(module)" EPS_CUDNN='' EPS_TEST_STEPS=1e5 \
            CK_FORK=no compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/$test"; then
            clean+=("$test")
        elif grep -q 'Device not supported\|Internal Sanitizer Error' "$work/said"; then
            missing "$name" "compute-sanitizer does not run: $(grep -m 1 '=========' "$work/said")"
            return
        elif grep -q 'ERROR SUMMARY: [1-9]\|RACECHECK SUMMARY: [1-9]' "$work/said"; then
            dirty+=("$test: $(grep -m 1 'Invalid\|Race\|Error\|hazard' "$work/said")")
        else
            late+=("$test")
        fi
    done
    running=''
    if [ ${#dirty[@]} -gt 0 ]; then
        failed "$name" "${dirty[*]}"
    elif [ ${#late[@]} -gt 0 ]; then
        missing "$name" "nothing in ${clean[*]-}; not to their end: ${late[*]}"
    else
        passed "$name" "nothing in ${clean[*]}"
    fi
}

cut_off() {
    [ -z "${running-}" ] || missing "${running%%|*}" "${running#*|}"
}

part_memcheck() {
    watched memcheck-attention memcheck $((allowed - 5)) test_attention test_attention_cached
}

part_sanitizer() {
    local -a tests
    mapfile -t tests < <(cuda_tests "$(dirname "$bin")" | grep -vE 'exact|generate|boundaries')
    watched memcheck memcheck $((allowed / 2 - 5)) "${tests[@]}"
    watched racecheck racecheck $((allowed / 2 - 5)) "${tests[@]}"
}
