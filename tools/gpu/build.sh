# shellcheck shell=bash
# Builds programs, backend, tests and benchmarks, with the packages of tools/gpu_prepare.sh where the machine lacks some.
# shellcheck disable=SC2154,SC2034 # their options and work folder come from outside; print_config reads shapes

# What the other parts run, and no more.
targets=(eps epsd eps-worker eps-cuda bench_cuda bench_resident)

part_build() {
    local tree began=$SECONDS
    local -a tests cache=()

    tree=$(dirname "$bin")
    if ! tools/gpu_prepare.sh probe >"$work/said" 2>&1; then
        fact lacking "$(cat "$work/said")"
        claim unpack 60 "the gathered packages unpack" tools/gpu_prepare.sh unpack || return 0
        cache=(-C build/prefix/cache.cmake)
    fi
    claim configure 120 "cmake finds all it needs" \
        cmake --preset release "${cache[@]}" -B "$tree" -DEPS_CUDA=ON || return 0
    mapfile -t tests < <(cuda_tests "$tree")
    claim build 450 "programs, backend and tests build, warnings being errors" \
        cmake --build "$tree" -j "$(nproc)" --target "${targets[@]}" "${tests[@]}" || return 0
    fact build-time "$((SECONDS - began)) s on $(nproc) processors"
}
