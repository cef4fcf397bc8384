#!/usr/bin/env bash
# Rehearses tools/gpu_check.sh, without a GPU, on a machine as bare as a lent one. Each call runs in a fresh copy of the
# tree as git knows it and of what tools/gpu_prepare.sh packs, in a root folder of its own: a shell's tools, but no
# compiler, git, Python, network, or library that only our programs need. The simulator stands for the device.
#
# Before the calls the probe looks for a stand-in driver in each place where machines have theirs, by the check's library
# path; and by the packed libraries alone, as the check once did, which lead to a driver only where ld.so looks anyway.
#
# usage: tests/gpu/rehearse.sh TREE OUT [CALL...]
#   TREE   a build folder of the release preset that has been built whole; or gpu, what tools/gpu_prepare.sh --build
#          packed for a device: then only that it starts is shown, once for each place of the driver, with CUDA's libraries
#          in another place each time, and a stand-in for nvidia-smi that names a device
#   OUT    CALL.txt and CALL.log of each call go there
#   CALL   what tools/gpu_check.sh is asked for, in one or more words, options first; with broken before it, a test of the
#          part computes fails, which is one finding and ends nothing. By default all three calls, and the first one broken:
#          each with a stand-in driver in another place; probe, if TREE is gpu
#
# Exit status: 0, 1 if a call failed, 2 misused, 77 if this machine lets nobody mount. Where root may at least change the root
# folder, as in most containers, the probe is rehearsed all the same.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 2 ] || { echo "rehearse.sh: name a build folder and one for findings" >&2; exit 2; }
tree=$(realpath "$1") out=$(realpath -m "$2")
shift 2
real='' # what runs is for a device
[ ! -e "$tree/commit" ] || real=yes
if [ $# -eq 0 ]; then
    set -- first second third "broken first"
    [ -z "$real" ] || set -- probe
fi

# A root folder of one's own needs root, or user namespaces; calls also need mounts in it.
bare=(unshare --mount --pid --fork --net --ipc)
[ "$(id -u)" -eq 0 ] || bare+=(--map-root-user)
mounts=yes
if ! "${bare[@]}" chroot / true 2>/dev/null; then
    bare=() mounts=''
    chroot / true 2>/dev/null || { echo "rehearse.sh: skipped: neither root nor user namespaces here" >&2; exit 77; }
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
toolkit=/usr/local/cuda/lib64
if [ -n "$real" ]; then
    cp -a "$tree" "$work/packed"
    [ -e $toolkit/libcublasLt.so ] || { echo "rehearse.sh: no $toolkit/libcublasLt.so" >&2; exit 1; }
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
    # 1: a file changed or went meanwhile, which other tests' files may do
    git ls-files -z --cached --others --exclude-standard | { tar -c --null -T - --ignore-failed-read 2>/dev/null || [ $? -eq 1 ]; } |
        tar -x -C "$1/repo"
    cp -a "$work/packed" "$1/repo/gpu"
    [ -n "$real" ] || return 0
    printf '#!/bin/sh\nls -d /packages/nvidia/*/lib\n' >"$1/usr/bin/python3"
    printf '#!/bin/sh\ncase "$*" in\n*compute_cap*) echo 9.0 ;;\n*) echo NVIDIA H200 ;;\nesac\n' >"$1/usr/bin/nvidia-smi"
    chmod +x "$1/usr/bin/"{python3,nvidia-smi}
}

# Where a machine has its driver: beside its C library; where only LD_LIBRARY_PATH leads; where Kubernetes mounts it; on WSL 2.
places=(beside-libc LD_LIBRARY_PATH /usr/local/nvidia/lib64 /usr/lib/wsl/lib)

# put_driver PLACE: puts the stand-in there, and sets its $folder; $cuda, where CUDA's libraries are meanwhile; and $leads, the
# environment that leads to both
put_driver() {
    leads=() folder=$1
    case $1 in
    beside-libc) folder=$(ldd "$BASH" | sed -n 's|.* \(/.*\)/libc\.so\.6 .*|\1|p') cuda=$toolkit ;;
    LD_LIBRARY_PATH) folder=/opt/driver cuda=/opt/cuda leads=(LD_LIBRARY_PATH=/opt/driver:/opt/cuda) ;;
    /usr/local/*) cuda=/packages/nvidia/cu13/lib ;;
    *) cuda=/packages/nvidia/cublas/lib ;;
    esac
    mkdir -p "$work/root$folder" "$work/root$cuda"
    cp "$work/libcuda.so.1" "$work/root$folder/"
}

worst=0
wrong() {
    echo "rehearse.sh: $*" >&2
    worst=1
}

# probe_by COMMAND...: the driver that the probe finds by the library path that the command prints, in $leads, and that CUDA's
# runtime takes
probe_by() {
    local said
    # shellcheck disable=SC2016 # the inner shell's
    said=$("${bare[@]}" chroot "$work/root" /usr/bin/env -i PATH=/usr/bin:/bin "${leads[@]}" bash -c 'cd /repo && python=false &&
        . tools/gpu/programs.sh && LD_LIBRARY_PATH=$("$@") exec gpu/bin/gpu_probe' probe "$@" 2>&1) || true
    [[ $said == *"driver version is insufficient"* ]] || sed -n 's/^driver-library|fact|//p' <<<"$said"
}

probe_places() {
    local place found packed

    : >"$work/root/dev/null" # nothing is mounted there
    for place in "${places[@]}"; do
        put_driver "$place"
        found=$(probe_by libraries gpu/bin)
        packed=$(probe_by realpath gpu/lib)
        echo "driver $place: the check finds ${found:-none}, the packed libraries alone lead to ${packed:-none}"
        [ "$found" = "$folder/libcuda.so.1" ] || wrong "the driver in $folder is not found"
        [ "$packed" = "$([ "$place" != beside-libc ] || echo "$found")" ] || wrong "the place $place shows nothing"
        rm "$work/root$folder/libcuda.so.1"
    done
    [ -z "$(probe_by libraries gpu/bin)" ] || wrong "a driver is found where there is none"
}

# rehearse CALL: in a fresh root, with the driver of $folder
rehearse() {
    local broken='' bad
    if [[ $1 == "broken "* ]]; then
        broken=1
        rm "$work/root/repo/gpu/bin/test_queues"
        printf '#!/bin/sh\necho it fails\nexit 1\n' >"$work/root/repo/gpu/bin/test_queues"
        chmod +x "$work/root/repo/gpu/bin/test_queues"
        set -- "${1#broken }"
    fi
    echo "-- $1${real:+, driver in $folder, CUDA in $cuda}"
    # shellcheck disable=SC2016,SC2086 # the inner shell's; a call may be several words
    "${bare[@]}" bash -c '
        mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/dev/shm" || exit
        [ -z "$2" ] || mount --bind "$2" "$1$3" || exit
        shift 3
        exec chroot "$@"' bare "$work/root" "${real:+$toolkit}" "${cuda-}" "$work/root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp \
        GOMP_SPINCOUNT=2000 "${leads[@]}" /repo/tools/gpu_check.sh "${simulate[@]}" --out /out $1 >"$work/said" 2>&1 ||
        [ $? -eq 1 ] || worst=1
    cat "$work/said"
    # Figures fall short, as the simulator has none; nothing else may fail, but where there is no device.
    bad=$(grep -E '\|failed\||: not begun|-ends\|' "$work/said" | grep -v '^-- ' || true)
    [ -z "$broken" ] || { grep -q '^computes|test_queues|failed|status 1: it fails' <<<"$bad" || wrong "what fails is no finding"; }
    [ -n "$real" ] || [ "$(grep -c . <<<"$bad")" -eq "${broken:-0}" ] || wrong "$1: $bad"
    grep -qF "call|programs|fact|$start" "$work/said" || worst=1
    [ "${real:+$1}" != probe ] || grep -qxF "probe|driver-library|fact|$folder/libcuda.so.1" "$work/said" ||
        wrong "the driver in $folder is not told"
    [ -z "$broken" ] || (cd "$work/root/out" && for file in *; do mv "$file" "broken-$file"; done)
    cp "$work/root/out/"* "$out/"
    rm -rf "$work/root"
}

simulate=(--simulate gpu/cudasim) start='those carried along start here' leads=()
if [ -n "$real" ]; then
    simulate=() start='to be built: gpu_probe says: device|missing|no GPU: invalid argument' # the last to be tried: all others start
    tar -C "$work/packed" -xzf "$work/packed/programs.tar.gz"
fi
root "$work/root"
if [ -x "$work/packed/bin/gpu_probe" ]; then # the toolkit is here, whose stub names the driver's functions
    tests/gpu/driver_names.sh $toolkit/stubs/libcuda.so "$work/driver_names.c"
    cc -shared -fPIC -D_GNU_SOURCE -DSTAND_IN_CUDA=99000 -o "$work/libcuda.so.1" tests/gpu/driver.c "$work/driver_names.c"
    probe_places
fi
[ -n "$mounts" ] || { echo "rehearse.sh: calls are skipped: nothing can be mounted here" >&2; exit $((worst ? worst : 77)); }
rm -rf "$work/root"
mkdir -p "$out"
n=0
for call in "$@"; do
    if [ -z "$real" ]; then
        root "$work/root"
        [ ! -e "$work/libcuda.so.1" ] || put_driver "${places[n++ % ${#places[@]}]}"
        rehearse "$call"
        continue
    fi
    for place in "${places[@]}"; do
        root "$work/root"
        put_driver "$place"
        rehearse "$call"
    done
done
exit $worst
