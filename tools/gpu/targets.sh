# shellcheck shell=bash
# Targets that the parts of tools/gpu_check.sh run, besides the tests.
# shellcheck disable=SC2034 # read by those who source it
targets=(eps epsd eps-worker eps-cuda bench_cuda bench_resident gpu_probe)
