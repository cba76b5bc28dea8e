"""Taichi: kernels over arrays of so many MiB, at most six of them or until it is refused."""

import json
import sys

import taichi

taichi.init(arch=taichi.cuda, offline_cache=False)


@taichi.kernel
def fill(array: taichi.types.ndarray()):
    for i in array:
        array[i] = i


held = []
found = {"arch": str(taichi.lang.impl.current_cfg().arch), "refusal": ""}
try:
    while len(held) < 6:
        held.append(taichi.ndarray(taichi.f32, shape=(int(sys.argv[1]) << 18,)))
        fill(held[-1])
        taichi.sync()
except RuntimeError as error:
    found["refusal"] = str(error)
print(json.dumps(found | {"held": len(held)}), flush=True)
