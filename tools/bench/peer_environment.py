"""What a peer needs to run at its best, for the peer_*.py of this folder."""
import glob
import os
import sys


def restart_at_best(threads, **more):
    """Restarts the script, once, as libraries read these variables when they load: OPENBLAS_CORETYPE unset (some machines
    force an old core by it: half the speed), OpenBLAS before the reference BLAS, AVX-512 kernels if the CPU has them,
    bounded spinning, the number of threads; and more, a variable each. Call it before importing any of them."""
    if os.environ.get("PEER_ENVIRONMENT") == "set":
        return
    env = dict(os.environ, GOMP_SPINCOUNT="2000", OMP_NUM_THREADS=str(threads), PEER_ENVIRONMENT="set", **more)
    env.pop("OPENBLAS_CORETYPE", None)
    with open("/proc/cpuinfo") as f:
        if "avx512f" in f.read():
            env["ATEN_CPU_CAPABILITY"] = "avx512"
    openblas = glob.glob("/usr/lib/*/openblas-openmp")
    if openblas:
        env["LD_LIBRARY_PATH"] = ":".join(openblas + [env.get("LD_LIBRARY_PATH", "")]).rstrip(":")
    os.execve(sys.executable, [sys.executable] + sys.argv, env)
