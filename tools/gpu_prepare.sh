#!/usr/bin/env bash
# Makes a machine that has a GPU and the CUDA toolkit, but no network, able to build this: gathers Debian's packages of
# the libraries that building needs, here, where there is a network; there they are unpacked into a folder of their own,
# never onto the system. The packages run on any x86-64 Linux whose C library is as new as the one they were gathered on.
#
# usage: tools/gpu_prepare.sh [gather]     downloads them into gpu/, which git ignores; carry that along with the tree
#        tools/gpu_prepare.sh unpack       there: unpacks gpu/*.deb into build/prefix; tools/gpu_check.sh build does it
#        tools/gpu_prepare.sh probe        says what building needs and this machine lacks; exit status 1 if something
set -euo pipefail
cd "$(dirname "$0")/.."

most_mib=60 # tree and packages, so that they can be carried together
develop=(libuv1-dev libnanomsg-dev libhwloc-dev libjansson-dev libxxhash-dev libpcre2-dev zlib1g-dev libzstd-dev
         libncurses-dev check)
modules=(libuv nanomsg hwloc jansson libxxhash libpcre2-8 zlib libzstd ncursesw check)
programs=(cmake ninja gcc g++ nvcc make)
# What every machine with a compiler has, or what only scripts of packages that are installed would need.
there='^(libc6|libc6-dev|libc-dev|libgcc-s1|libstdc\+\+6|libltdl.*|gcc-.*|dpkg|perl.*|mawk|debianutils|install-info|autom.*)$'
prefix=build/prefix

fail() {
    echo "gpu_prepare.sh: $*" >&2
    exit 1
}

# The packages of $@ and of the libraries that they need, each once.
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
    local kib

    command -v apt-get >/dev/null || fail "gathering needs Debian's apt; run it where there is one"
    mapfile -t packages < <(with_libraries "${develop[@]}" pkgconf)
    mkdir -p gpu
    rm -f gpu/*.deb
    if ! (cd gpu && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}") >gpu/log 2>&1; then
        cat gpu/log >&2
        fail "apt-get could not download ${packages[*]}; try: apt-get update"
    fi
    rm -f gpu/log
    kib=$({
        git ls-files -z --cached --others --exclude-standard
        printf '%s\0' gpu/*.deb
    } | sort -zu | xargs -0 du -kc 2>/dev/null | awk '$2 == "total" { sum += $1 } END { print sum + 0 }')
    [ "$kib" -le $((most_mib * 1024)) ] || fail "tree and packages take $kib KiB, more than $most_mib MiB"
    echo "${#packages[@]} packages in gpu/; with the tree $((kib / 1024 + 1)) MiB"
}

# Links that name a place of the system are made to name the prefix's.
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
# Finds what lies in this prefix, and nothing else.
export PKG_CONFIG_SYSROOT_DIR="$PWD/$prefix" PKG_CONFIG_LIBDIR="$PWD/${library#"$PWD"/}:$PWD/$prefix/usr/share/pkgconfig"
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
${found:+exec $found \"\$@\"}
export LD_LIBRARY_PATH="$PWD/$(dirname "$library")"
exec "$PWD/$prefix/usr/bin/pkgconf" "\$@"
SH
    chmod +x "$prefix/pkg-config"
    # For cmake: -C build/prefix/cache.cmake. The libraries' own libraries are found by DT_RPATH, which is inherited.
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

# Each thing that is missing, a line; none: nothing is.
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
unpack) unpack ;;
probe)
    lacks=$(missing | paste -sd ' ')
    [ -z "$lacks" ] || fail "this machine lacks $lacks"
    echo "gpu_prepare.sh: all that building needs is here"
    ;;
--help | -h) awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' tools/gpu_prepare.sh ;;
*) echo "gpu_prepare.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
esac
