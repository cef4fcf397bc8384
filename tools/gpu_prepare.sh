#!/usr/bin/env bash
# Prepares tools/gpu_check.sh for a machine with a GPU but no network. Fills gpu/, which git ignores and which travels with
# the tree. It gets the Debian packages of the libraries for a build, in case the machine must build and has the CUDA
# toolkit. With --build it also gets programs, tests and kernels built here, with their libraries. They run on any x86-64
# Linux whose C library is as new as this machine's.
#
# usage: tools/gpu_prepare.sh [gather]     downloads the packages
#        tools/gpu_prepare.sh --build      the same; with the CUDA toolkit, builds for sm_90 and packs the result
#        tools/gpu_prepare.sh cudnn [WHEEL] packs the two libraries of the newest cuDNN that attention needs, from PyPI or from
#                                          a wheel of nvidia-cudnn-cu13 that is here (13: the toolkit's CUDA), into
#                                          cudnn/part.*: each fits a call of its own beside the tree. NVRTC, which compiles the
#                                          engines' kernels, is inside libcudnn_graph. tools/gpu_check.sh joins them where all
#                                          have come
#        tools/gpu_prepare.sh simulator TREE FOLDER  for tests/gpu/rehearse.sh: packs the programs of a build folder, and the
#                                                    simulator in place of the backend, into FOLDER
#        tools/gpu_prepare.sh unpack       on the other machine: unpacks gpu/*.deb into build/prefix, as tools/gpu_check.sh build does
#        tools/gpu_prepare.sh probe        lists what the build needs and this machine lacks; exit status 1 if anything
set -euo pipefail
cd "$(dirname "$0")/.."

most_mib=63 # tree and packages, so that they can be carried together
develop=(libuv1-dev libnanomsg-dev libhwloc-dev libjansson-dev libxxhash-dev libpcre2-dev libutf8proc-dev zlib1g-dev
         libzstd-dev libpng-dev libjpeg62-turbo-dev libncurses-dev libsodium-dev check)
modules=(libuv nanomsg hwloc jansson libxxhash libpcre2-8 libutf8proc zlib libzstd libpng libjpeg ncursesw libsodium check)
programs=(cmake ninja gcc g++ nvcc make)
# Packages that every machine with a compiler has, or that only maintainer scripts need.
there='^(libc6|libc6-dev|libc-dev|libgcc-s1|libstdc\+\+6|libltdl.*|gcc-.*|dpkg|perl.*|mawk|debianutils|install-info|autom.*)$'
prefix=build/prefix
packed=gpu
code=sm_90 # of the device that programs are packed for
# Libraries that a machine with a driver has: C's, C++'s and CUDA's.
system='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libcu.*|libnv.*)\.so'

fail() {
    echo "gpu_prepare.sh: $*" >&2
    exit 1
}

# The packages of $@ and of the libraries they need, each once.
with_libraries() {
    apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
        "$@" | awk -v there="$there" -v wanted="$*" '
            BEGIN { n = split(wanted, queue, " ") }
            /^[^ ]/ { of = $1 }
            $1 == "Depends:" { needs[of] = needs[of] " " $2 }
            END {
                for (i = 1; i <= n; i++) {
                    if (queue[i] in seen || queue[i] ~ there || queue[i] ~ /^</) continue
                    seen[queue[i]]
                    print queue[i]
                    m = split(needs[queue[i]], more, " ")
                    for (j = 1; j <= m; j++) queue[++n] = more[j]
                }
            }'
}

gather() {
    local -a packages

    command -v apt-get >/dev/null || fail "gathering needs Debian's apt; run it where there is one"
    mapfile -t packages < <(with_libraries "${develop[@]}" pkgconf)
    mkdir -p gpu
    rm -f gpu/*.deb
    if ! (cd gpu && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}") >gpu/log 2>&1; then
        cat gpu/log >&2
        fail "apt-get could not download ${packages[*]}; try: apt-get update"
    fi
    rm -f gpu/log
    echo "${#packages[@]} packages in gpu/"
    weigh
}

# Size of what travels: the tree as git knows it, and the packed files.
weigh() {
    local kib programs=0
    kib=$({
        git ls-files -z --cached --others --exclude-standard
        find "$packed" -type f -not -path "$packed/bin/*" -not -path "$packed/lib/*" -print0
    } | sort -zu | xargs -0 du -kc --apparent-size 2>/dev/null | awk '$2 == "total" { sum += $1 } END { print sum + 0 }')
    # A rehearsal's programs are not compressed; those of a lent machine are.
    [ ! -e "$packed/bin" ] || programs=$(tar -C "$packed" -cz bin lib | wc -c)
    kib=$((kib + programs / 1024))
    [ "$kib" -le $((most_mib * 1024)) ] || fail "the tree and $packed/ take $kib KiB, more than $most_mib MiB"
    echo "the tree and $packed/: $((kib / 1024 + 1)) MiB, of $most_mib that can be carried"
}

# pack TREE [cudasim/]: packs a build's stripped programs, tests and backend into $packed, with the libraries they load,
# their sources' checksum and their commit
pack() {
    local tree=$1 simulator=${2-} program library
    local -a tests

    . tools/gpu/programs.sh
    . tools/gpu/targets.sh
    mapfile -t tests <"$tree/cuda-tests.txt"
    mkdir -p "$packed/bin" "$packed/lib"
    (cd "$packed" && rm -rf bin/* lib/* programs.tar.gz cudasim cache sources commit code cuda-tests.txt)
    [ -z "$simulator" ] || mkdir "$packed/cudasim"
    for program in "${targets[@]}" "${tests[@]}"; do
        case $program in # what is of the device
        eps-cuda) program=${simulator}eps-cuda.so ;;
        bench_cuda) program=${simulator}bench_cuda ;;
        gpu_probe) [ -z "$simulator" ] || [ -e "$tree/bin/gpu_probe" ] || continue ;; # the toolkit's: rehearsed if it is there
        esac
        [ -e "$tree/bin/$program" ] || fail "$tree has no bin/$program: build it first"
        if [ -L "$tree/bin/$program" ]; then # a test, by which its folder's program is called
            cp -P "$tree/bin/$program" "$packed/bin/"
            program=$(readlink "$tree/bin/$program")
        fi
        [ -e "$packed/bin/$program" ] || strip -o "$packed/$( [[ $program == */* ]] || echo bin/)$program" "$tree/bin/$program"
    done
    while read -r library; do
        [[ ${library##*/} =~ $system ]] || cp -L "$library" "$packed/lib/"
    done < <(find "$packed" -type f -perm -1 -exec ldd {} + 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u)
    strip --strip-unneeded "$packed"/lib/*
    cp "$tree/cuda-tests.txt" "$packed/"
    git ls-files -z --cached --others --exclude-standard -- '*.c' '*.h' '*.cu' '*.cuh' '*.cmake' '*CMakeLists.txt' CMakePresets.json \
        tests/fixtures | xargs -0 sha256sum >"$packed/sources"
    tree_commit >"$packed/commit"
    echo "$(find "$packed/bin" -type f | wc -l) programs and $(find "$packed/lib" -type f | wc -l) libraries in $packed/, of commit $(cat "$packed/commit")"
    if [ -z "$simulator" ]; then # a third of the bytes; choose_programs unpacks them
        tar -C "$packed" -czf "$packed/programs.tar.gz" bin lib
        rm -r "$packed/bin" "$packed/lib"
    fi
    sed -n 's/^EPS_CUDA_CODE:[A-Z]*=//p' "$tree/CMakeCache.txt" >"$packed/code"
    [ -s "$packed/code" ] || rm "$packed/code"
    weigh
}

build() {
    local tree=build/packed
    local -a tests

    . tools/gpu/targets.sh
    cmake --preset release -B $tree -DEPS_CUDA=ON -DEPS_CUDA_CODE=$code >build/packed.log 2>&1 ||
        fail "cmake cannot configure $tree: build/packed.log says why"
    mapfile -t tests <$tree/cuda-tests.txt
    cmake --build $tree -j "$(nproc)" --target "${targets[@]}" "${tests[@]}" >>build/packed.log 2>&1 ||
        fail "$tree does not build: build/packed.log says why"
    pack $tree
}

# Size of the tree as git knows it, in KiB.
tree_kib() {
    git ls-files -z --cached --others --exclude-standard | xargs -0 du -kc --apparent-size 2>/dev/null |
        awk '$2 == "total" { sum += $1 } END { print sum + 0 }'
}

# cudnn [WHEEL]
cudnn() {
    local wheel=${1-} work room cuda
    command -v xz >/dev/null || fail "xz is not there"
    work=$(mktemp -d)
    # shellcheck disable=SC2064 # now
    trap "rm -rf '$work'" EXIT
    if [ -z "$wheel" ]; then
        cuda=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
        [ -n "$cuda" ] || fail "nvcc does not say which CUDA the toolkit is"
        python3 -m pip download -q --no-deps --only-binary=:all: -d "$work" "nvidia-cudnn-cu$cuda" >"$work/log" 2>&1 ||
            fail "pip could not download nvidia-cudnn-cu$cuda: $(tail -n 1 "$work/log")"
        wheel=$(compgen -G "$work/*.whl")
    fi
    [ -e "$wheel" ] || fail "$wheel is not there"
    mkdir "$work/lib"
    python3 - "$wheel" "$work/lib" <<'PYTHON' || fail "$wheel lacks a library of cuDNN 9"
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in ("libcudnn_graph.so.9", "libcudnn_engines_runtime_compiled.so.9"):
        with wheel.open("nvidia/cudnn/lib/" + name) as one, open(f"{sys.argv[2]}/{name}", "wb") as to:
            shutil.copyfileobj(one, to)
PYTHON
    room=$((most_mib * 1024 - $(tree_kib)))
    [ "$room" -ge 1024 ] || fail "the tree leaves no room beside it, of $most_mib MiB"
    rm -rf cudnn
    mkdir cudnn
    tar -C "$work" -c lib | xz -6 -T 0 -c >"$work/all.xz"
    split -b "$((room - 64))K" -d -a 1 "$work/all.xz" cudnn/part.
    (cd cudnn && sha256sum part.* >sums)
    echo "$(basename "$wheel"): $(($(wc -c <"$work/all.xz") >> 20)) MiB in cudnn/, $(find cudnn -name 'part.*' | wc -l) parts, each for a call of its own"
}

# Redirects links to system paths into the prefix.
mend_links() {
    local link to
    while read -r link; do
        to=$(readlink "$link")
        if [[ $to == /* ]]; then
            ln -sfn "$(realpath -sm --relative-to="$(dirname "$link")" "$prefix$to")" "$link"
        fi
    done < <(find "$prefix" -type l)
}

unpack() {
    local deb library found

    compgen -G 'gpu/*.deb' >/dev/null || fail "no gpu/*.deb: run tools/gpu_prepare.sh where there is a network"
    rm -rf "$prefix"
    mkdir -p "$prefix"
    for deb in gpu/*.deb; do
        dpkg -x "$deb" "$prefix" || fail "$deb cannot be unpacked"
    done
    if [ -d "$prefix/lib" ] && [ ! -L "$prefix/lib" ]; then # of packages from before /usr was one
        cp -a "$prefix/lib/." "$prefix/usr/lib/"
        rm -rf "${prefix:?}/lib"
    fi
    ln -sfn usr/lib "$prefix/lib"
    mend_links
    library=$(dirname "$(find "$prefix/usr/lib" -name libuv.pc)")
    found=$(command -v pkg-config || command -v pkgconf || true)
    cat >"$prefix/pkg-config" <<SH
#!/bin/sh
# Searches this prefix only.
export PKG_CONFIG_SYSROOT_DIR="$PWD/$prefix" PKG_CONFIG_LIBDIR="$PWD/${library#"$PWD"/}:$PWD/$prefix/usr/share/pkgconfig"
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
${found:+exec $found \"\$@\"}
export LD_LIBRARY_PATH="$PWD/$(dirname "$library")"
exec "$PWD/$prefix/usr/bin/pkgconf" "\$@"
SH
    chmod +x "$prefix/pkg-config"
    # For cmake: -C build/prefix/cache.cmake. Libraries of libraries are found by DT_RPATH, which is inherited.
    cat >"$prefix/cache.cmake" <<CMAKE
set(PKG_CONFIG_EXECUTABLE "$PWD/$prefix/pkg-config" CACHE FILEPATH "")
set(CMAKE_BUILD_RPATH "$PWD/$(dirname "$library")" CACHE STRING "")
set(CMAKE_EXE_LINKER_FLAGS "-Wl,--disable-new-dtags" CACHE STRING "")
set(CMAKE_SHARED_LINKER_FLAGS "-Wl,--disable-new-dtags" CACHE STRING "")
CMAKE
    for module in "${modules[@]}"; do
        "$prefix/pkg-config" --cflags --libs "$module" >/dev/null || fail "$module is not in $prefix: gather anew"
    done
    echo "unpacked into $prefix"
}

# Lists what is missing, one per line.
missing() {
    local name PATH=$PATH:/usr/local/cuda/bin

    for name in "${programs[@]}"; do
        command -v "$name" >/dev/null || echo "$name"
    done
    for name in "${modules[@]}"; do
        pkg-config --exists "$name" 2>/dev/null || echo "$name"
    done
}

case "${1-gather}" in
gather) gather ;;
--build) mkdir -p build; gather; build ;;
cudnn) cudnn "${2-}" ;;
simulator)
    [ $# -eq 3 ] || { echo "gpu_prepare.sh: simulator needs a build folder and one to pack into" >&2; exit 2; }
    packed=$3
    pack "$2" cudasim/
    ;;
unpack) unpack ;;
probe)
    lacks=$(missing | paste -sd ' ')
    [ -z "$lacks" ] || fail "this machine lacks $lacks"
    echo "gpu_prepare.sh: all that building needs is here"
    ;;
--help | -h) awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' tools/gpu_prepare.sh ;;
*) echo "gpu_prepare.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
esac
