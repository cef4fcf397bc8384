# shellcheck shell=bash
# The operations on small shapes under compute-sanitizer.
# shellcheck disable=SC2154

part_sanitizer() {
    local tool test tree began seconds=$((allowed / 2 - 15)) # of each tool
    local -a tests
    tree=$(dirname "$bin")

    [ -z "$simulate" ] || { missing memcheck "a simulator has no compute-sanitizer"; return; }
    if ! command -v compute-sanitizer >/dev/null; then
        missing memcheck "compute-sanitizer is not on the PATH"
        missing racecheck "compute-sanitizer is not on the PATH"
        return
    fi
    mapfile -t tests < <(cuda_tests "$tree" | grep -vE 'exact|generate|boundaries')
    for tool in memcheck racecheck; do
        local clean=() dirty=() late=()
        began=$SECONDS
        for test in "${tests[@]}"; do
            if [ $((SECONDS - began)) -gt $seconds ]; then
                late+=("$test")
            elif limited $((seconds + began - SECONDS + 5)) env EPS_TEST_CUDA="$(module)" EPS_TEST_STEPS=1e5 CK_FORK=no \
                compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/$test"; then
                clean+=("$test")
            elif grep -q 'Device not supported\|Internal Sanitizer Error' "$work/said"; then
                missing "$tool" "compute-sanitizer does not run: $(grep -m 1 '=========' "$work/said")"
                continue 2
            elif grep -q 'ERROR SUMMARY: [1-9]\|RACECHECK SUMMARY: [1-9]' "$work/said"; then
                dirty+=("$test: $(grep -m 1 'Invalid\|Race\|Error\|hazard' "$work/said")")
            else
                late+=("$test")
            fi
        done
        if [ ${#dirty[@]} -gt 0 ]; then
            failed "$tool" "${dirty[*]}"
        elif [ ${#late[@]} -gt 0 ]; then
            missing "$tool" "nothing in ${clean[*]}; not to their end: ${late[*]}"
        else
            passed "$tool" "nothing in ${clean[*]}"
        fi
    done
}
