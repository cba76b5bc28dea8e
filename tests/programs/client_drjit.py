"""Dr.Jit: a kernel that it compiles itself, then arrays of so many MiB until it is refused."""

import json
import sys

import drjit
from drjit.cuda import Float

held = []
found = {"backend": str(drjit.backend_v(Float)), "refusal": ""}
try:
    while len(held) < 10:
        array = drjit.arange(Float, int(sys.argv[1]) << 18) + len(held)
        drjit.eval(array)
        drjit.sync_thread()
        held.append(array)
except RuntimeError as error:
    found["refusal"] = str(error)
print(json.dumps(found | {"held": len(held)}), flush=True)
