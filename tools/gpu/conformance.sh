# shellcheck shell=bash
# The tests of all backends, on the device: every operation, the fixtures against their PyTorch values, the rows of
# tests/README.md.
# shellcheck disable=SC2154 # options and work folder come from outside

# conforms NAME TEST SECONDS [CUDNN]: runs a test and records its finding
conforms() {
    local rc
    local -a environment=(EPS_TEST_CUDA="$(module)" EPS_CUDNN="${4-}")

    limited "$3" "${ours[@]}" "${environment[@]}" CK_FORK=no "$bin/$2"
    rc=$?
    if [ $rc -ge 128 ] && [ $rc -ne 137 ]; then # one of its tests has taken all down: which
        limited "$3" "${ours[@]}" "${environment[@]}" CK_DEFAULT_TIMEOUT=20 "$bin/$2"
    fi
    case $rc in
    0) passed "$1" "$(grep -m 1 '^[0-9]*%: Checks' "$work/said" || echo "no test failed")" ;;
    77) missing "$1" "skipped: $(tail -n 1 "$work/said")" ;;
    *) failed "$1" "$(why $rc "$3"); $(grep -m 1 -E ':[FE]:' "$work/said" | cut -c 1-300)" ;;
    esac
}

# Basic computation: these fail first.
part_computes() {
    take_cudnn
    conforms test_queues test_queues 25
    conforms own-attention test_attention 30
    if [ -n "${EPS_CUDNN-}" ]; then
        conforms test_attention test_attention 40 "$EPS_CUDNN"
    else
        missing test_attention "cuDNN is not there, so what own-attention shows is all"
    fi
    conforms test_exact_gradients test_exact_gradients 30 "${EPS_CUDNN-}"
    conforms test_exact_bf16 test_exact_bf16 30 "${EPS_CUDNN-}"
    conforms test_matmul test_matmul $((allowed - SECONDS - 5))
}

part_conformance() {
    local test
    local -a tests

    take_cudnn
    mapfile -t tests < <(cuda_tests "$(dirname "$bin")")
    [ ${#tests[@]} -gt 0 ] || failed conformance "$(dirname "$bin")/cuda-tests.txt names no test"
    for test in "${tests[@]}"; do
        case $test in
        test_attention_cached | test_norm | test_rope | test_glu | test_rows | test_dropout | test_softmax | test_conv2d)
            conforms "$test" "$test" 25 ;; # cuDNN has no part in it, or one of its own, and takes long to begin
        *) conforms "$test" "$test" 40 "${EPS_CUDNN-}" ;;
        esac
    done
}
