"""torch.compile and its relatives see a program as if no hooks were in it; in C and in Python."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

from carpool.agent.turns import hot_path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

# In a process of its own each way, but torch is imported once for all of them.
PROGRAM = """
import copy, json, os, sys, warnings
warnings.simplefilter("ignore")
import torch
for how in sys.argv[1:]:
    pid = os.fork()
    if not pid:
        break
    if os.waitpid(pid, 0)[1]:
        sys.exit(f"{how} failed")
else:
    sys.exit()

from torch import nn
from carpool.agent.turns import hot_path
from carpool.agent.turns.torch_hooks import Hooks

seen = {}
if how == "python":
    hot_path.native = None
real = nn.Module.__call__
if how != "bare":
    hooks = Hooks(torch)
    hooks.install()
    class Holder:  # of a turn that nobody wants
        state = None
        def begin(self): pass
        def boundary(self, point): pass
        def yield_point(self, backwards): pass
        def take_back(self, *points): pass
    hooks._turns = Holder()
    assert type(nn.Module.__call__).__name__ == ("ModuleCall" if how == "c" else "function")

from torch._dynamo.testing import CompileCounter

def net(hooked=False):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 1)))
    if hooked:
        made[0].register_forward_hook(lambda module, args, out: out * 2)
    return made

class Outer(nn.Module):
    def __init__(self, backend):
        super().__init__()
        self.inner, self.head = net(), torch.compile(nn.Linear(1, 1), backend=backend, fullgraph=True)
    def forward(self, x):
        return self.head(self.inner(x))

class Own(nn.Linear):
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs) * 2

def compiled(thing):
    return lambda backend: torch.compile(thing, backend=backend, fullgraph=True)

def calls(module):
    return lambda x: module(x) + module.__call__(x)

CASES = {
    "root": compiled(net()),
    "hooks inside": compiled(net(hooked=True)),
    "function": compiled(calls(net())),
    "function, hooks inside": compiled(calls(net(hooked=True))),
    "root not compiled": Outer,
    "a call of its own": compiled(nn.Sequential(Own(8, 8), nn.Linear(8, 1))),
    "copied": compiled(copy.deepcopy(net())),
}
x = torch.ones(4, 8)
for name, make in CASES.items():
    torch._dynamo.reset()
    torch.manual_seed(0)
    counter = CompileCounter()
    call = make(counter)
    for _ in range(2):
        out = call(x)
        out.sum().backward()
    with torch.no_grad():
        call(x)
    seen[name] = [counter.frame_count, counter.op_count, float(out.sum().detach()) if "own" not in name else 0]
seen["exported"] = len(torch.export.export(net(hooked=True), (x,), strict=True).graph.nodes)
seen["traced"] = len(torch.fx.symbolic_trace(net()).graph.nodes)
if how != "bare":
    assert nn.Module.__call__ is not real, "tracing put the old call back"
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, Any]]:
    """What was seen in each way."""
    ways = ["bare", "python", *(["c"] if hot_path.native is not None else [])]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *ways], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(ways, map(json.loads, done.stdout.splitlines()), strict=True))


def test_graphs_are_those_of_a_program_without_hooks(seen: dict[str, Any], implementation: str) -> None:
    assert seen[implementation] == seen["bare"]
