# shellcheck shell=bash
# Records the GPU, its driver, the toolkit, and the machine's limits.
# shellcheck disable=SC2154,SC2034 # their options and work folder come from outside; print_config reads shapes

probe_device() {
    local name verdict text probe=$bin/gpu_probe
    device='' # yes if there is one

    fact toolkit "$(nvcc --version 2>/dev/null | sed -n 's/^Cuda compilation tools, //p' || true)"
    [ -x "$probe" ] || probe=gpu/bin/gpu_probe # it may tell why the others are not used
    if [ ! -x "$probe" ]; then # nothing else need be built
        probe=$work/probe
        if ! command -v nvcc >/dev/null; then
            failed device "there is neither a built probe nor nvcc to build it"
            return
        fi
        limited 60 nvcc -O2 -Xcompiler -D_GNU_SOURCE tools/gpu/probe.c -o "$probe" || {
            failed device "tools/gpu/probe.c does not build: $(why $? 60)"
            return
        }
    fi
    limited 20 "${ours[@]}" "$probe" || failed probe-program "$(why $? 20)"
    device=yes
    while IFS='|' read -r name verdict text; do
        [ -z "$text" ] || finding "$verdict" "$name" "$text"
        [[ "$name $verdict" != device\ @(missing|failed) ]] || device=''
    done < <(cat "$work/said")
}

probe_cudnn() {
    take_cudnn
    if [ -n "${EPS_CUDNN-}" ]; then
        fact cudnn "the newest in $EPS_CUDNN"
    else
        missing cudnn "no libcudnn_graph.so.9 in the toolkit, the system, LD_LIBRARY_PATH or $python's packages"
    fi
}

# Later parts of the call plan by it.
probe_profile() {
    if [ -z "$device" ]; then
        missing profile "there is no device to measure"
    elif [ ! -x "$bin/eps" ]; then
        missing profile "eps is not built yet"
    else
        take_profile "$bin/eps" || true
    fi
}

probe_host() {
    fact host "$(nproc) processors, $(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 2^20 }' /proc/meminfo), $(
        sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), Linux $(uname -r)"
    fact disk "$(df -h --output=avail "$out" | tail -n 1 | tr -d ' ') free for results"
}

probe_driver() {
    fact driver "$(nvidia-smi --query-gpu=driver_version,name,pstate,clocks.max.sm,clocks.max.mem,power.limit,$(
        )pcie.link.gen.max,pcie.link.width.max --format=csv,noheader | head -n 1)"
}

# The machine in few words, and the prices that the runs after it are planned with.
part_profile() {
    probe_host
    if [ -n "$simulate" ]; then
        fact simulated "nothing here was run on a GPU"
        return
    fi
    probe_driver
    probe_cudnn
    take_profile "$bin/eps" $((allowed - SECONDS - 4)) || true
}

part_probe() {
    probe_host
    if [ -n "$simulate" ]; then
        fact simulated "nothing here was run on a GPU"
        return
    fi
    probe_driver
    probe_device
    probe_cudnn
    probe_profile
}
