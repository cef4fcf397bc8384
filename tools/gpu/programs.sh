# shellcheck shell=bash
# Chooses the programs of a call and tells from which sources they were built.
# shellcheck disable=SC2154,SC2034 # options of tools/gpu_check.sh

# Where a machine may have its driver besides where ld.so looks: mounted by a container's host; on WSL 2. Not among them is
# /usr/local/cuda/compat, whose newer driver only some devices run.
drivers=(/usr/local/nvidia/lib64 /usr/lib/wsl/lib)

# libraries BIN: library path of its programs: packed libraries; CUDA's from the toolkit, the system or Python packages; then
# the machine's own path, which may be all that leads to its driver, and the folders that may hold one. For our own programs
# only, as others may need the machine's libraries of the same name.
libraries() {
    local folder all
    all=$(realpath -m "$1/../lib")
    for folder in /usr/local/cuda/lib64 $("$python" -c 'import nvidia; [print(p + "/cu13/lib", p + "/cublas/lib")
for p in nvidia.__path__]' 2>/dev/null); do
        [ ! -e "$folder/libcublasLt.so" ] && ! compgen -G "$folder/libcublasLt.so.*" >/dev/null || all+=:$folder
    done
    all+=${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    for folder in "${drivers[@]}"; do
        [ ! -e "$folder/libcuda.so.1" ] || all+=:$folder
    done
    echo "$all"
}

# carries_sources: true if gpu/ was built from these sources; prints those that are others
carries_sources() {
    [ -e gpu/sources ] && sha256sum --quiet -c gpu/sources 2>&1
}

# commit: the commit that gpu/ was built from, if these are its sources; else the tree's, which a copy may have lost
commit() {
    if carries_sources >/dev/null; then
        cat gpu/commit
    elif git rev-parse HEAD >/dev/null 2>&1; then
        tree_commit
    else
        cat gpu/commit 2>/dev/null || echo unknown
    fi
}

# tree_commit: the commit of a git tree, with a plus sign if it has changes
tree_commit() {
    echo "$(git rev-parse --short=12 HEAD)$([ -z "$(git status --porcelain)" ] || echo +)"
}

# lame BIN: prints one line on why its programs do not start here; nothing if they do
lame() {
    local program said module
    local -a with
    with=(env LD_LIBRARY_PATH="$(libraries "$1")")
    for program in eps epsd eps-worker; do
        said=$("${with[@]}" "$1/$program" --version 2>&1) || { echo "$program says: ${said##*$'\n'}"; return; }
    done
    module=$(realpath -m "${simulate:-$1}/eps-cuda.so")
    said=$("${with[@]}" "${simulate:-$1}/bench_cuda" --module "$module" nothing 2>&1)
    [ $? -eq 2 ] || { echo "bench_cuda says: ${said##*$'\n'}"; return; } # it has loaded the backend, and knows no such part
    [ -n "$simulate" ] || said=$("${with[@]}" "$1/gpu_probe" 2>&1) || echo "gpu_probe says: ${said##*$'\n'}"
}

# other_device: prints why packed kernels cannot run on this device; nothing if they can
other_device() {
    local code device
    [ -z "$simulate" ] && code=$(cat gpu/code 2>/dev/null) || return 0
    device=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
    [[ ,$code, == *,sm_"${device/./}",* ]] || echo "those carried along are for $code, and the device is of capability ${device:-unknown}"
}

# choose_programs: sets $bin and $build_first, and reports the choice and its reason
choose_programs() {
    local why=''

    build_first=''
    if [ -n "$bin" ] || [[ " ${parts[*]} " == *" build "* ]]; then
        bin=${bin:-build/cuda/bin}
        return
    fi
    bin=gpu/bin
    [ ! -e gpu/programs.tar.gz ] || tar -C gpu -xzf gpu/programs.tar.gz >>"$log" 2>&1
    if [ ! -x gpu/bin/eps ]; then
        why="none were carried along in gpu/"
    elif ! carries_sources >>"$log"; then
        why="those carried along are of other sources"
    else
        why=$(other_device)
        why=${why:-$(lame gpu/bin)}
    fi
    if [ -z "$why" ]; then
        echo "call|programs|fact|those carried along start here" | tee -a "$results"
        return
    fi
    echo "call|programs|fact|to be built: $why" | tee -a "$results"
    bin=build/cuda/bin
    [ "${parts[*]}" = probe ] || build_first=yes
}
