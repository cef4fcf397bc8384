"""What peers on a GPU are timed by, as bench_cuda times ours, and what they say of themselves."""
import statistics
import time

import torch


def synchronizer(device):
    return torch.cuda.synchronize if device == "cuda" else lambda: None


def tell_versions(device):
    print(f"pytorch|{torch.__version__}|" + (f"{torch.cuda.get_device_name(0)}, cuDNN {torch.backends.cudnn.version()}"
                                             if device == "cuda" else "the processor"), flush=True)


def middle_ms(run, synchronize, enough_ms, rounds=7):
    """One call to load, one to choose the number of calls, then rounds of that many calls."""
    def calls(n):
        synchronize()
        began = time.perf_counter()
        for _ in range(n):
            run()
        synchronize()
        return (time.perf_counter() - began) * 1e3
    calls(1)
    n = 1 + int(min(1000, enough_ms / max(calls(1), 0.01)))
    return statistics.median(calls(n) / n for _ in range(rounds))
