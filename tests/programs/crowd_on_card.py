"""A CUDA program of several processes: each holds `--gib` on the card and launches kernels until the input ends."""

import argparse
import ctypes
import subprocess
import sys
import threading


def work(gib: int) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, module, kernel, at = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_ulonglong()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 == cuda.cuCtxSetCurrent(context)
    assert cuda.cuModuleLoadData(ctypes.byref(module), b"any image") == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"busy_1ms") == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(gib << 30)) == 0
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    while not is_over.is_set():
        assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0 == cuda.cuCtxSynchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--gib", type=int, default=1)
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    if args.child:
        work(args.gib)
        return
    command = [sys.executable, __file__, "--child", "--gib", str(args.gib)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(args.processes)]
    print("begun", flush=True)
    sys.stdin.read()
    for child in children:
        child.communicate()
    sys.exit(any(child.returncode for child in children))


main()
