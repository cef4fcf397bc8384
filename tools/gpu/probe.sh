# shellcheck shell=bash
# What there is: the GPU, its driver, the toolkit, what the machine allows, the peers.
# shellcheck disable=SC2154,SC2034 # their options and work folder come from outside; print_config reads shapes

probe_device() {
    local name verdict text

    fact toolkit "$(nvcc --version 2>/dev/null | sed -n 's/^Cuda compilation tools, //p' || true)"
    if ! limited 120 nvcc -O2 -Xcompiler -D_GNU_SOURCE tools/gpu/probe.c -o "$work/probe"; then
        failed device "tools/gpu/probe.c does not build: $(why $? 120)"
        return
    fi
    limited 120 "$work/probe" || failed probe-program "$(why $? 120)"
    while IFS='|' read -r name verdict text; do
        [ -z "$text" ] || finding "$verdict" "$name" "$text"
    done < <(cat "$work/said")
}

probe_sanitizer() {
    if ! command -v compute-sanitizer >/dev/null; then
        missing sanitizer "compute-sanitizer is not on the PATH"
    elif limited 120 compute-sanitizer --tool memcheck --error-exitcode 9 "$work/probe" &&
        grep -q 'ERROR SUMMARY: 0 errors' "$work/said"; then
        passed sanitizer "compute-sanitizer $(compute-sanitizer --version | sed -n 's/^Version //p') runs"
    else
        missing sanitizer "compute-sanitizer does not run: $(grep -m 1 '=========' "$work/said" || why $? 120)"
    fi
}

probe_cudnn() {
    take_cudnn
    if [ -n "${EPS_CUDNN-}" ]; then
        fact cudnn "$EPS_CUDNN/libcudnn.so.9"
    else
        missing cudnn "no libcudnn.so.9 in the toolkit, the system or $python's packages"
    fi
}

probe_peers() {
    if limited 120 "$python" - <<'PY'; then
import torch
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
print("PyTorch", torch.__version__, "sees", torch.cuda.get_device_name(0), "cuDNN", torch.backends.cudnn.version(),
      "NCCL", ".".join(map(str, torch.cuda.nccl.version())))
PY
        fact pytorch "$(tail -n 1 "$work/said")"
    else
        missing pytorch "no PyTorch with FSDP2 that sees a GPU in $python: $(why $? 120)"
    fi
}

probe_host() {
    fact host "$(nproc) processors, $(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 2^20 }' /proc/meminfo), $(
        sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), Linux $(uname -r)"
    fact disk "$(df -h --output=avail "$out" | tail -n 1 | tr -d ' ') free for results"
}

part_probe() {
    probe_host
    if [ -n "$simulate" ]; then
        fact simulated "nothing here was run on a GPU"
        return
    fi
    fact driver "$(nvidia-smi --query-gpu=driver_version,name,pstate,clocks.max.sm,clocks.max.mem,power.limit,$(
        )pcie.link.gen.max,pcie.link.width.max --format=csv,noheader | head -n 1)"
    probe_device
    probe_sanitizer
    probe_cudnn
    probe_peers
}
