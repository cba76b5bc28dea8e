"""What will work with a program's Python: it is started as a job would start it, and asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from carpool._native import STABLE
from carpool.cli.child import merged_environment
from carpool.daemon.environment import INJECT
from carpool.devices.libraries import BUILT
from carpool.wire import supported

AddFinding = Callable[[str, str, str], None]  # mark (ok, note or missing), what, text
PROBE_SECONDS = 60
NO_TORCH = "it has no torch"
EXAMPLE = "give the path of one, such as ~/venvs/train/bin/python"
# Understood by Pythons of any age: an old one has to be named as that.
PROBE = """
import json, sys
facts = {"python": "%d.%d.%d" % tuple(sys.version_info[:3]), "flags": getattr(sys, "abiflags", ""), "torch": None}
facts["implementation"] = getattr(getattr(sys, "implementation", None), "name", "cpython")
facts["inside"] = any(getattr(each, "__name__", "") == "_CarpoolFinder" for each in sys.meta_path)
facts["points"] = facts["moves"] = facts["parks"] = facts["records"] = facts["hooked"] = False
try:
    from carpool.agent.turns import hot_path
    from carpool.agent.parking import find_and_copy
    facts["points"], facts["moves"] = hot_path.native is not None, find_and_copy.native is not None
except (ImportError, SyntaxError):
    pass
try:
    import torch
    call = torch.nn.Module.__call__
    facts["hooked"], facts["points"] = hasattr(call, "__wrapped__"), type(call).__name__ == "ModuleCall"
    facts["torch"], facts["cuda"] = torch.__version__, torch.cuda.is_available()
    from carpool.agent.parking import storages
    facts["parks"] = facts["hooked"]
    from carpool.agent.checkpoint import install
    facts["records"] = facts["hooked"]
except Exception as error:
    facts["why"] = str(error)
print(json.dumps(facts))
"""
C_PARTS = {
    "points": ("hot_path", "boundaries are counted in C", "boundaries are counted in pure Python, 10 to 20 µs each"),
    "moves": (
        "find_and_copy",
        "tensors are found and copied in C",
        "parking finds and copies tensors in pure Python, slower",
    ),
}
FACTS = {"python", "implementation", "flags", "inside", "torch", "hooked", "parks", "records", *C_PARTS}
WORKS = {
    "turns": "torch programs at their iterations, others in `with carpool.turn()`",
    "parking": "a job's memory can leave its device while it waits",
    "checkpoint": "a script can go on in another process",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether something works in a Python; why not, or how."""

    works: bool
    why: str


@dataclass(slots=True, kw_only=True)
class Answer:
    """What a Python said of itself, and what follows from it."""

    path: str
    python: str = ""
    implementation: str = ""
    torch: str | None = None
    cuda: bool = False
    c_parts: dict[str, bool] = field(default_factory=dict)
    turns: Verdict = Verdict(works=False, why="")
    parking: Verdict = Verdict(works=False, why="")
    checkpoint: Verdict = Verdict(works=False, why="")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def look_at(path: str, add: AddFinding) -> Answer:
    """Ask the Python at this path, and say what was found."""
    answer = Answer(path=path)
    facts, said = _ask(path)
    if isinstance(facts, str):
        add("missing", "python", facts)
        _judge(answer, {}, facts, is_alone=False)
        return answer
    answer.python, answer.implementation = facts["python"], facts["implementation"]
    answer.torch, answer.cuda = facts["torch"], bool(facts.get("cuda"))
    answer.c_parts = {what: bool(facts[what]) for what in C_PARTS}
    trouble = _python_trouble(path, facts, add)
    is_alone = not trouble and answer.torch is None
    if not trouble:
        trouble = _torch_trouble(path, facts, said, add)
        _add_c_parts(facts, add)
    _judge(answer, facts, trouble, is_alone=is_alone)
    for what in WORKS:
        verdict: Verdict = getattr(answer, what)
        add("ok" if verdict.works else "note", what, f"{'yes' if verdict.works else 'no'}: {verdict.why}")
    return answer


def _ask(python: str) -> tuple[dict[str, Any] | str, str]:
    """Its facts, or why there are none; and what it said on stderr."""
    environment = merged_environment(
        os.environ, {"set": {"CARPOOL_JOB": "doctor"}, "prepend": {"PYTHONPATH": str(INJECT)}}
    )
    try:
        done = subprocess.run(
            [python, "-c", PROBE], env=environment, capture_output=True, timeout=PROBE_SECONDS, text=True
        )
        facts = json.loads(done.stdout.strip().rpartition("\n")[2])
        if not isinstance(facts, dict) or not facts.keys() >= FACTS:
            raise ValueError("not the probe's answer")
    except OSError as error:
        return f"{python} cannot be started ({error.strerror}); {EXAMPLE}", ""
    except subprocess.TimeoutExpired:
        return f"{python} did not answer within {PROBE_SECONDS} s; {EXAMPLE}", ""
    except ValueError:
        return f"{python} is no Python: it does not do what `-c` says; {EXAMPLE}", ""
    return facts, done.stderr


def _python_trouble(path: str, facts: dict[str, Any], add: AddFinding) -> str:
    """Why its programs cannot take turns at all; empty if they can."""
    version, tested = supported.minor(facts["python"]), supported.range_of(supported.PYTHONS)
    is_any = bool(os.environ.get(supported.ENV_ANY_VERSION))
    why = supported.trouble_of(facts["implementation"], version, facts["flags"], is_any=is_any)
    if why:
        add("missing", "python", f"{why}; its programs run outside carpool's turns; use {tested} ({path})")
        return why
    if not facts["inside"]:
        why = "it does not read PYTHONPATH (is it started with -I, -E or -S?)"
        add("missing", "python", f"{facts['python']}; {why}, so carpool does not get into its programs ({path})")
        return why
    if version > supported.PYTHONS[1]:
        add("note", "python", f"{facts['python']} is not tested; {tested} are ({path})")
    else:
        add("ok", "python", f"{facts['python']}; {tested} are tested ({path})")
    return ""


def _torch_trouble(path: str, facts: dict[str, Any], said: str, add: AddFinding) -> str:
    """Why its torch programs take no turns of their own; empty if they do."""
    version, tested = facts["torch"], supported.range_of(supported.TORCHES)
    if version is None:
        whose = "; it is carpool's own: name your programs' with --python" if path == sys.executable else ""
        add(
            "missing", "torch", f"{path} has no torch ({facts['why']}); only `with carpool.turn()` works there{whose}"
        )
        return NO_TORCH if "No module named 'torch'" in facts["why"] else f"its torch does not load ({facts['why']})"
    found = f"{version}, CUDA {'usable' if facts['cuda'] else 'not usable'}"
    why = supported.torch_trouble(version)
    if why:
        add("missing", "torch", f"{why}; its programs run outside carpool's turns; use {tested}")
        return why
    if supported.TORCHES[0] <= supported.minor(version) <= supported.TORCHES[1]:
        add("ok", "torch", f"{found}; {tested} are tested")
    else:
        add("note", "torch", f"{found}; this version is not tested, {tested} are")
    if facts["hooked"]:
        add("ok", "hooks", "installed when the program imports torch")
        return ""
    add("missing", "hooks", f"not installed: {said.strip()[:200] or 'sitecustomize did not run'}")
    return "the hooks could not be installed"


def _add_c_parts(facts: dict[str, Any], add: AddFinding) -> None:
    """One library serves every Python from 3.11 on: it was built, or was not, whichever Python asks."""
    for what, (library, works, without) in C_PARTS.items():
        if facts[what]:
            add("ok", what, works)
        elif (BUILT / f"{library}{STABLE}").exists():
            why = f"Python {facts['python']} does not load {library}{STABLE} (free-threaded, or of another machine?)"
            add("note", what, f"{why}: {without}")
        else:
            add("note", what, f"the C library is not built: {without} (install gcc, then carpool again)")


def _judge(answer: Answer, facts: dict[str, Any], trouble: str, *, is_alone: bool) -> None:
    """What works, and why the rest does not; `is_alone` if all that is missing is torch."""
    how = f"only in `with carpool.turn()`: {trouble}" if is_alone else trouble or WORKS["turns"]
    answer.turns = Verdict(works=is_alone or not trouble, why=how)
    for what, fact in (("parking", "parks"), ("checkpoint", "records")):
        why = trouble or ("" if facts[fact] else f"its torch lacks what that needs ({facts.get('why')})")
        setattr(answer, what, Verdict(works=not why, why=why or WORKS[what]))
