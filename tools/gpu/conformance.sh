# shellcheck shell=bash
# The tests that run on every backend, on the device: every operation, the fixtures against their PyTorch values, the
# rows of exactness.
# shellcheck disable=SC2154,SC2034 # their options and work folder come from outside; print_config reads shapes

# conforms NAME TEST CUDNN: a finding of that name
conforms() {
    local rc
    local -a environment=(EPS_TEST_CUDA="$(module)" EPS_CUDNN="$3")

    limited 240 env "${environment[@]}" CK_FORK=no "$bin/$2"
    rc=$?
    if [ $rc -ge 128 ] && [ $rc -ne 137 ]; then # one of its tests has taken all down: which
        limited 100 env "${environment[@]}" CK_DEFAULT_TIMEOUT=60 "$bin/$2"
    fi
    case $rc in
    0) passed "$1" "$(grep -m 1 '^[0-9]*%: Checks' "$work/said" || echo "no test failed")" ;;
    77) missing "$1" "skipped: $(tail -n 1 "$work/said")" ;;
    *) failed "$1" "$(why $rc 240); $(grep -m 1 -E ':[FE]:' "$work/said" | cut -c 1-300)" ;;
    esac
}

part_conformance() {
    local test tree
    tree=$(dirname "$bin")

    take_cudnn
    mapfile -t tests < <(cuda_tests "$tree")
    [ ${#tests[@]} -gt 0 ] || failed conformance "$tree/cuda-tests.txt names no test"
    for test in "${tests[@]}"; do
        case $test in
        test_matmul | test_norm | test_rows | test_dropout | test_softmax | test_queues | test_attention_cached)
            conforms "$test" "$test" '' ;; # cuDNN has no part in it, and takes long to begin
        *) conforms "$test" "$test" "${EPS_CUDNN-}" ;;
        esac
    done
    conforms own-attention test_attention ''
}
