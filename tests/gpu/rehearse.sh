#!/usr/bin/env bash
# Rehearses tools/gpu_check.sh, without a GPU, on a machine as bare as a lent one. Each call runs in a fresh copy of the
# tree as git knows it and of what tools/gpu_prepare.sh packs, in a root folder of its own: a shell's tools, but no
# compiler, git, Python, network, or library that only our programs need. The simulator stands for the device.
#
# usage: tests/gpu/rehearse.sh TREE OUT [CALL...]
#   TREE   a build folder of the release preset that has been built whole; or gpu, what tools/gpu_prepare.sh --build
#          packed for a device: then only that it starts is shown, with CUDA's libraries laid out as in Python's packages
#          and a stand-in for nvidia-smi that names a device
#   OUT    CALL.txt and CALL.log of each call go there
#   CALL   what tools/gpu_check.sh is asked for, in one or more words, options first. By default all three calls, which
#          take ten minutes on two cores; probe, if TREE is gpu
#
# Exit status: 0, 1 if a call failed, 2 misused, 77 if this machine lets nobody change the root folder.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 2 ] || { echo "rehearse.sh: name a build folder and one for findings" >&2; exit 2; }
tree=$(realpath "$1") out=$(realpath -m "$2")
shift 2
real='' # what runs is for a device
[ ! -e "$tree/commit" ] || real=yes
if [ $# -eq 0 ]; then
    set -- first second third
    [ -z "$real" ] || set -- probe
fi

# A root folder of one's own needs root, or user namespaces.
bare=(unshare --mount --pid --fork --net --ipc)
[ "$(id -u)" -eq 0 ] || bare+=(--map-root-user)
if ! "${bare[@]}" chroot / true 2>/dev/null; then
    echo "rehearse.sh: skipped: neither root nor user namespaces here" >&2
    exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "$real" ]; then
    cp -a "$tree" "$work/packed"
    cuda=/usr/local/cuda/lib64
    [ -e $cuda/libcublasLt.so ] || { echo "rehearse.sh: no $cuda/libcublasLt.so" >&2; exit 1; }
else
    tools/gpu_prepare.sh simulator "$tree" "$work/packed"
fi

# root FOLDER: the tools of a machine without anything, and the tree with what is packed in FOLDER/repo
root() {
    local program library
    mkdir -p "$1"/{bin,usr/bin,lib,lib64,proc,dev/shm,tmp,out,repo}
    for program in bash sh env awk sed grep cat cp mv rm mkdir rmdir mktemp ls ln chmod touch head tail sort uniq cut \
        paste tr wc tee date sleep timeout kill realpath dirname basename readlink find xargs nproc uname df id cmp diff \
        gzip tar sha256sum od true false printf comm seq stat hostname setsid flock; do
        program=$(type -P "$program") || continue
        cp -L "$program" "$1/usr/bin/${program##*/}"
    done
    ln -sf ../usr/bin/bash "$1/bin/bash"
    ln -sf ../usr/bin/bash "$1/bin/sh"
    while read -r library; do
        mkdir -p "$1${library%/*}"
        cp -L "$library" "$1$library"
    done < <(ldd "$1"/usr/bin/* 2>/dev/null | grep -o '/[^ ]*\.so[^ ]*' | sort -u)
    # What every C library brings, and PyTorch.
    for library in libstdc++.so.6 libgcc_s.so.1 lib{m,dl,rt,pthread}.so.{0,1,2,6}; do
        library=$(ldconfig -p | awk -v name="$library" '$1 == name && /x86-64/ && !n++ { print $NF }')
        [ -n "$library" ] || continue
        mkdir -p "$1${library%/*}"
        cp -L "$library" "$1$library"
    done
    git ls-files -z --cached --others --exclude-standard | tar -c --null -T - --ignore-failed-read 2>/dev/null | tar -x -C "$1/repo"
    cp -a "$work/packed" "$1/repo/gpu"
    [ -n "$real" ] || return 0
    mkdir -p "$1/packages/nvidia/cu13/lib"
    printf '#!/bin/sh\necho /packages/nvidia/cu13/lib\n' >"$1/usr/bin/python3"
    printf '#!/bin/sh\ncase "$*" in\n*compute_cap*) echo 9.0 ;;\n*) echo NVIDIA H200 ;;\nesac\n' >"$1/usr/bin/nvidia-smi"
    chmod +x "$1/usr/bin/"{python3,nvidia-smi}
}

worst=0 simulate=(--simulate gpu/cudasim) start='those carried along start here'
[ -z "$real" ] || simulate=() start='to be built: gpu_probe says: device|missing|no GPU' # the last to be tried: all others start
mkdir -p "$out"
for call in "$@"; do
    root "$work/root"
    echo "-- $call"
    # shellcheck disable=SC2016,SC2086 # the inner shell's; a call may be several words
    "${bare[@]}" bash -c '
        mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/dev/shm" || exit
        [ -z "$2" ] || mount --bind "$2" "$1/packages/nvidia/cu13/lib" || exit
        shift 2
        exec chroot "$@"' bare "$work/root" "${cuda-}" "$work/root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp GOMP_SPINCOUNT=2000 \
        /repo/tools/gpu_check.sh "${simulate[@]}" --out /out $call >"$work/said" 2>&1 || [ $? -eq 1 ] || worst=1
    cat "$work/said"
    # Figures fall short, as the simulator has none; nothing else may fail, but where there is no device.
    [ -n "$real" ] || ! grep -qE '\|failed\||: not begun|-ends\|' "$work/said" || worst=1
    grep -qF "call|programs|fact|$start" "$work/said" || worst=1
    cp "$work/root/out/"* "$out/"
    rm -rf "$work/root"
done
exit $worst
