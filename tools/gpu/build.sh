# shellcheck shell=bash
# Builds programs, backend, tests and benchmarks; tools/gpu_prepare.sh's packages supply what the machine lacks.
# shellcheck disable=SC2154,SC2034 # their options and work folder come from outside; print_config reads shapes

. tools/gpu/targets.sh

# packaged_toolkit TREE OPTION...: configures with CUDA libraries and headers from Python packages, if the toolkit is only
# nvcc
packaged_toolkit() {
    local tree=$1 folder library
    shift
    for folder in $("$python" -c 'import nvidia; [print(p + "/cu13") for p in nvidia.__path__]' 2>>"$log"); do
        library=$(find "$folder/lib" -name 'libcublasLt.so*' 2>/dev/null | head -n 1)
        if [ -z "$library" ] || [ ! -e "$folder/include/cublasLt.h" ]; then continue; fi
        rm -f "$tree/CMakeCache.txt"
        claim configure-packaged 120 "cmake finds all it needs, cuBLASLt among Python's packages in $folder" \
            env CFLAGS="-isystem $folder/include" cmake --preset release "$@" -B "$tree" -DEPS_CUDA=ON \
            -DCUDA_cublasLt_LIBRARY="$library" && return
    done
    return 1
}

part_build() {
    local tree rc began=$SECONDS
    local -a tests cache=(-DCMAKE_COMPILE_WARNING_AS_ERROR=ON)

    tree=$(dirname "$bin")
    if ! tools/gpu_prepare.sh probe >"$work/said" 2>&1; then
        fact lacking "$(cat "$work/said")"
        claim unpack 60 "the gathered packages unpack" tools/gpu_prepare.sh unpack || return 0
        cache+=(-C build/prefix/cache.cmake)
    fi
    claim configure 120 "cmake finds all it needs" \
        cmake --preset release "${cache[@]}" -B "$tree" -DEPS_CUDA=ON || packaged_toolkit "$tree" "${cache[@]}" || return 0
    mapfile -t tests < <(cuda_tests "$tree")
    limited $((allowed - 60)) cmake --build "$tree" -j "$(nproc)" --target "${targets[@]}" "${tests[@]}"
    rc=$?
    if [ $rc -eq 0 ]; then
        passed build "programs, backend and tests build, warnings being errors"
    elif [ $rc -eq 124 ]; then
        failed build "$(why $rc $((allowed - 60))); the same again goes on from there"
        return
    else
        failed build "$(grep -m 1 -E "error:|Error " "$work/said" || why $rc $((allowed - 60)))"
        cmake -B "$tree" -DCMAKE_COMPILE_WARNING_AS_ERROR=OFF >>"$log" 2>&1 # the compiler may differ from the tests'
        claim build-lenient $((allowed - 10 - SECONDS + began)) "they build if warnings are none" \
            cmake --build "$tree" -j "$(nproc)" --target "${targets[@]}" "${tests[@]}" || return 0
    fi
    fact build-time "$((SECONDS - began)) s on $(nproc) processors, $(cc --version | head -n 1)"
}
