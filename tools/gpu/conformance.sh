# shellcheck shell=bash
# The tests that run on every backend, on the device: every operation, the fixtures against their PyTorch values, the
# rows of exactness.
# shellcheck disable=SC2154,SC2034 # their options and work folder come from outside; print_config reads shapes

part_conformance() {
    local test tree rc
    tree=$(dirname "$bin")

    take_cudnn
    mapfile -t tests < <(cuda_tests "$tree")
    [ ${#tests[@]} -gt 0 ] || failed conformance "$tree/cuda-tests.txt names no test"
    for test in "${tests[@]}"; do
        limited 240 env EPS_TEST_CUDA="$(module)" CK_FORK=no "$bin/$test"
        rc=$?
        if [ $rc -ge 128 ] && [ $rc -ne 137 ]; then # one of its tests has taken all down: which
            limited 100 env EPS_TEST_CUDA="$(module)" CK_DEFAULT_TIMEOUT=60 "$bin/$test"
        fi
        case $rc in
        0) passed "$test" "$(grep -m 1 '^[0-9]*%: Checks' "$work/said" || echo "no test failed")" ;;
        77) missing "$test" "skipped: $(tail -n 1 "$work/said")" ;;
        *) failed "$test" "$(why $rc 240); $(grep -m 1 -E ':[FE]:' "$work/said" | cut -c 1-300)" ;;
        esac
    done
}
