"""The import rules and sizes of the package, read from the source itself: who may know whom, and how large.

cli · bench · testing
daemon · sim · k8s · serve · remote      siblings: never each other
agent · client · journal · policies      agent: only serve and remote use it; imports no core; loaded into jobs
core · wire · devices · calls            siblings: never each other
units · errors                           import nothing of ours (units may raise errors)
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from carpool.devices.kinds import CHOICES
from carpool.testing.house import figures
from carpool.testing.house.imports import LAYERS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "carpool"
MODULES = sorted(PACKAGE.rglob("*.py"))

FUNCTION_LINES_MAX = 50
MODULE_LINES_MAX = 500  # a bound on what one reads at once; what is watched is knowledge (carpool.testing.house)
GUEST_LINES_MAX = 1799  # of C inside any CUDA program, without comments and blank lines
NOT_WRITTEN = {
    "page.h",
    "protocol.h",
    "driver.h",
}  # made from wire/protocol.py; NVIDIA's types, as the driver declares them

HEIGHT = {part: height for height, parts in enumerate(LAYERS) for part in parts}
TOP = len(LAYERS) - 1
USES_AGENT = {"serve", "remote"}
USES_TORCH = {"agent", "serve", "remote"}
JOB_SCRIPTS = "bench/programs/"  # run as jobs, never imported
NEEDS_TORCH = {"agent/turns/torch_hooks.py", "agent/cuda.py"}  # loaded only after the program's own import of torch
LOADED_INTO_JOBS = {"agent", "wire", "units", "errors"}
INJECTED = "agent/inject/"
EXTENSIONS = {"hot_path": "agent", "find_and_copy": "agent", "swap": "wire"}  # C modules, and whose they are
CUDA_MODULE = "agent/cuda.py"
BACKENDS_MODULE = "agent/backends.py"
CUDA_CALL = re.compile(r"(^|_)cuda(_|$)|^pin_memory$|^_host_emptyCache$")  # torch.cuda, x.is_cuda, torch._C._cuda_…
DATA_MODULES = {
    "__future__",
    "abc",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "typing",
}


@dataclass(frozen=True, kw_only=True)
class Import:
    """One imported module: `part` is the part of carpool it belongs to, or None for anybody else's."""

    line: int
    module: str
    is_late: bool  # inside a function, or only for the type checker

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    @property
    def part(self) -> str | None:
        names = self.module.split(".")
        return names[1] if names[0] == "carpool" and len(names) > 1 else None


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of(name: str) -> str:
    """The part a module belongs to, by its name: `core` for core/lanes.py, `units` for units.py."""
    return name.partition("/")[0].removesuffix(".py")


def find_imports(source: str, name: str) -> list[Import]:
    found: list[Import] = []

    def visit(node: ast.AST, is_late: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(line=node.lineno, module=each.name, is_late=is_late) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, name)
            for each in node.names:
                module = f"carpool.{each.name}" if base == "carpool" and each.name in HEIGHT else base
                found.append(Import(line=node.lineno, module=module, is_late=is_late))
        elif isinstance(node, ast.Call) and (module := _module_named(node)):
            found.append(Import(line=node.lineno, module=module, is_late=is_late))
        late = is_late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_types(node)
        for child in ast.iter_child_nodes(node):
            visit(child, late)

    visit(ast.parse(source), False)
    return found


def _module_named(call: ast.Call) -> str:
    """What import_module("carpool.x") imports, or load("x") of carpool's C modules; empty for other calls."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    first = call.args[0] if call.args else None
    if isinstance(first, ast.JoinedStr) and first.values:
        first = first.values[0]  # f"carpool.cli.{name}"
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return ""
    if function in ("import_module", "__import__"):
        return first.value.rstrip(".")
    return f"carpool._native.{first.value}" if function == "load" and len(call.args) == 2 else ""


@cache
def imports_of(path: Path) -> list[Import]:
    return find_imports(path.read_text(), name_of(path))


def _absolute(node: ast.ImportFrom, name: str) -> str:
    if not node.level:
        return node.module or ""
    package = ["carpool", *name.split("/")[:-1]]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


# --- the rules, each: the imports of a module to what is wrong with them -----------------------------------


def layer_faults(name: str, imports: list[Import]) -> Iterator[tuple[int, str]]:
    """Only what stands lower; siblings never each other, but for the top row."""
    part = part_of(name)
    if part not in HEIGHT:
        return
    for each in imports:
        if each.part is None or each.part == part or each.part not in HEIGHT:
            continue
        if HEIGHT[each.part] > HEIGHT[part]:
            yield each.line, f"{part} imports {each.module}, which stands higher"
        elif HEIGHT[each.part] == HEIGHT[part] != TOP and (part, each.part) != ("units", "errors"):
            yield each.line, f"{part} imports {each.module}; siblings never import each other"
        elif each.part == "agent" and part not in USES_AGENT:
            yield each.line, f"{part} imports {each.module}; only {', '.join(sorted(USES_AGENT))} use the agent"


def core_faults(name: str, imports: list[Import]) -> Iterator[tuple[int, str]]:
    if part_of(name) != "core":
        return
    for each in imports:
        if each.top != "carpool" and each.top not in DATA_MODULES:
            yield each.line, f"core imports {each.module}; it may use only the standard library's data modules"


def job_faults(name: str, imports: list[Import]) -> Iterator[tuple[int, str]]:
    """What is loaded into a job brings no third-party module with it, and nothing of core."""
    part = part_of(name)
    if part not in LOADED_INTO_JOBS:
        return
    for each in imports:
        if each.top == "carpool":
            if part == "agent" and each.part == "core":
                yield each.line, f"agent imports {each.module}; the core stays outside jobs"
        elif each.top == "torch":
            if not each.is_late and name not in NEEDS_TORCH:
                yield each.line, f"{name} imports torch when it is loaded; the program's own import comes first"
        elif each.top not in sys.stdlib_module_names:
            yield each.line, f"{name} is loaded into jobs and imports {each.module}"


def injected_faults(name: str, imports: list[Import]) -> Iterator[tuple[int, str]]:
    """The first of our code in a job, before anything of ours can be found: standard library only."""
    if not name.startswith(INJECTED):
        return
    for each in imports:
        is_agent = each.is_late and each.part == "agent"
        if each.top not in sys.stdlib_module_names and not is_agent:
            yield each.line, f"{name} imports {each.module}; it may use only the standard library"


def torch_faults(name: str, imports: list[Import]) -> Iterator[tuple[int, str]]:
    if part_of(name) in USES_TORCH or name.startswith(JOB_SCRIPTS):
        return
    for each in imports:
        if each.top == "torch":
            yield each.line, f"{name} imports torch; only {', '.join(sorted(USES_TORCH))} do"


def root_faults(name: str, imports: list[Import]) -> Iterator[tuple[int, str]]:
    """`import carpool` costs nothing: the public names are loaded on first use."""
    if name != "__init__.py":
        return
    for each in imports:
        if not each.is_late and each.top not in DATA_MODULES:
            yield each.line, f"carpool itself imports {each.module} when it is loaded"


def extension_faults(name: str, imports: list[Import]) -> Iterator[tuple[int, str]]:
    """A C module belongs to one part, as a Python module does."""
    for each in imports:
        extension = each.module.removeprefix("carpool._native.")
        owner = EXTENSIONS.get(extension, "")
        if extension != each.module and part_of(name) != owner:
            yield each.line, f"{part_of(name)} loads {each.module}, which belongs to {owner or 'nobody'}"


Rule = Callable[[str, list[Import]], Iterator[tuple[int, str]]]
IMPORT_RULES: list[Rule] = [
    layer_faults,
    core_faults,
    job_faults,
    injected_faults,
    torch_faults,
    root_faults,
    extension_faults,
]


def long_functions(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name} has {lines} lines; {FUNCTION_LINES_MAX} are allowed"


def cuda_faults(name: str, source: str) -> Iterator[tuple[int, str]]:
    """Inside a job one module calls torch's CUDA side; the others know only the word for the kind of device."""
    if part_of(name) != "agent" or name == CUDA_MODULE:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute | ast.keyword | ast.Import | ast.ImportFrom):
            for word in filter(CUDA_CALL.search, words_used(node)):
                yield node.lineno, f"{name} uses '{word}'; what is special to CUDA stands in {CUDA_MODULE}"


def kind_faults(name: str, source: str) -> Iterator[tuple[int, str]]:
    """What a device can do is asked of its kind; its name is compared nowhere but where kinds are listed."""
    if part_of(name) == "devices" or name == BACKENDS_MODULE or name.startswith(JOB_SCRIPTS):
        return
    operands: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            operands += [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            operands.append(node.value)
    for operand in operands:
        for each in operand.elts if isinstance(operand, ast.Tuple | ast.List | ast.Set) else [operand]:
            if isinstance(each, ast.Constant) and each.value in CHOICES:
                yield each.lineno, f"{name} compares with '{each.value}'; ask the kind of device what it can do"


def words_used(node: ast.Attribute | ast.keyword | ast.Import | ast.ImportFrom) -> list[str]:
    """The attribute, the argument, or what of torch is imported."""
    match node:
        case ast.Attribute():
            return [node.attr]
        case ast.keyword():
            return [node.arg or ""]
        case ast.Import():
            paths = [each.name for each in node.names]
        case ast.ImportFrom():
            paths = [f"{node.module}.{each.name}" for each in node.names]
    return [word for path in paths if path.startswith("torch.") for word in path.split(".")]


def complain(faults: dict[Path, list[tuple[int, str]]]) -> None:
    said = [
        f"{path.relative_to(ROOT).as_posix()}:{line}: {what}"
        for path, found in sorted(faults.items())
        for line, what in found
    ]
    if said:
        pytest.fail("\n" + "\n".join(said), pytrace=False)


# --- the package keeps them ------------------------------------------------------------------------------------


@pytest.mark.parametrize("find_faults", IMPORT_RULES, ids=lambda rule: rule.__name__)
def test_every_module_imports_only_what_it_may(find_faults: Rule) -> None:
    complain({path: list(find_faults(name_of(path), imports_of(path))) for path in MODULES})


def test_every_part_of_the_package_has_its_place_in_the_layers() -> None:
    parts = {part_of(name_of(path)) for path in MODULES} - {"__init__", "__main__", "_native", "web"}
    assert parts <= set(HEIGHT), f"not in the layers: {sorted(parts - set(HEIGHT))}"


def test_no_function_is_longer_than_fifty_lines() -> None:
    complain({path: list(long_functions(path.read_text())) for path in MODULES})


def test_what_is_special_to_cuda_in_a_job_stands_in_one_module() -> None:
    complain({path: list(cuda_faults(name_of(path), path.read_text())) for path in MODULES})


def test_nobody_asks_for_a_kind_of_device_by_its_name() -> None:
    complain({path: list(kind_faults(name_of(path), path.read_text())) for path in MODULES})


def test_no_module_is_longer_than_five_hundred_lines() -> None:
    faults = {}
    for path in MODULES:
        lines = len(path.read_text().splitlines())
        if lines > MODULE_LINES_MAX:
            faults[path] = [(lines, f"{lines} lines; {MODULE_LINES_MAX} are allowed")]
    complain(faults)


@pytest.mark.parametrize("name", ["core_imports_max", "core_depth", "fields_with_several_writers", "job_fields_max"])
def test_the_core_does_not_become_harder_to_see(name: str) -> None:
    found = figures.FIGURES[name]()
    assert found.value <= figures.allowed(name), f"{figures.WHAT[name]}:\n" + "\n".join(found.names)


def test_the_cuda_guest_stays_small() -> None:
    modules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    guest = next(module for module in modules if module["name"] == "carpool._native.gpu")
    files = [ROOT / name for name in (*guest["sources"], *guest["depends"]) if name.endswith((".c", ".h"))]
    texts = [path.read_text() for path in files if path.name not in NOT_WRITTEN]
    included = set(re.findall(r'^#include "(.+\.h)"', "".join(texts), re.MULTILINE))
    assert included <= {path.name for path in files}, "pyproject.toml does not say what the guest is made of"
    code = re.sub(r"/\*.*?\*/", "", "".join(texts), flags=re.DOTALL)
    assert sum(bool(line.strip()) for line in code.splitlines()) <= GUEST_LINES_MAX


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: which files are tracked is not known")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:" + "|".join(["work", "root", "home"]) + r")/\w")


def machine_paths(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if MACHINE_PATH.search(line):
            yield number, f"a path of one machine: {line.strip()[:100]}"


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    faults = {}
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" not in data:
            faults[path] = list(machine_paths(data.decode(errors="replace")))
    complain(faults)


# --- and the rules notice when it does not ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("core/lanes.py", "from carpool.daemon import driver", "core imports carpool.daemon, which stands higher"),
        ("core/lanes.py", "from carpool import cli", "core imports carpool.cli, which stands higher"),
        ("core/lanes.py", "import carpool.wire.page", "siblings never import each other"),
        ("core/lanes.py", "import time", "core imports time; it may use only"),
        ("core/lanes.py", "def f():\n    from os import path", "core imports os; it may use only"),
        ("core/policies/x.py", "import random", "core imports random; it may use only"),
        ("daemon/driver.py", "from carpool.sim.engine import Engine", "siblings never import each other"),
        ("daemon/driver.py", "from carpool.agent.link import Link", "only remote, serve use the agent"),
        ("sim/engine.py", "from ..daemon import driver", "siblings never import each other"),
        ("agent/turns/turn_taking.py", "from carpool.core.node.model import JobId", "the core stays outside jobs"),
        ("agent/turns/turn_taking.py", "import msgspec", "is loaded into jobs and imports msgspec"),
        ("agent/turns/turn_taking.py", "import torch", "the program's own import comes first"),
        ("wire/framing.py", "import msgspec", "is loaded into jobs and imports msgspec"),
        ("agent/inject/sitecustomize.py", "from carpool.agent import boot", "it may use only the standard library"),
        ("cli/doctor.py", "import torch.cuda", "imports torch; only agent, remote, serve do"),
        ("wire/page.py", 'load("hot_path", 8)', "wire loads carpool._native.hot_path, which belongs to agent"),
        ("wire/page.py", 'import_module("carpool._native.hot_path")', "which belongs to agent"),
        ("agent/link.py", "import carpool._native.swap", "which belongs to wire"),
        ("daemon/driver.py", 'importlib.import_module("carpool.sim.engine")', "siblings never import each other"),
        ("daemon/driver.py", 'importlib.import_module(f"carpool.cli.{name}")', "which stands higher"),
        ("errors.py", "from carpool.units import GIB", "siblings never import each other"),
        (
            "__init__.py",
            "from carpool.agent.api import turn",
            "carpool itself imports carpool.agent.api",
        ),
    ],
)
def test_a_broken_import_rule_is_noticed(name: str, source: str, fault: str) -> None:
    imports = find_imports(source, name)
    found = [what for rule in IMPORT_RULES for _, what in rule(name, imports)]
    assert any(fault in what for what in found), found


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("core/lanes.py", "from collections.abc import Mapping\nfrom carpool.core.node.model import Job"),
        ("core/node.py", "from carpool.units import MS\nfrom carpool.errors import InternalError"),
        ("daemon/translate.py", "from carpool.core.node.model import Job\nfrom carpool.wire import messages"),
        ("serve/app.py", "import torch\nfrom carpool.agent.api import turn"),
        ("cli/bench.py", "from carpool.bench import jct"),
        ("cli/main.py", 'importlib.import_module(f"carpool.cli.{name}")'),
        ("wire/page.py", 'from carpool._native import load\nload("swap", 1)\njson.load(file, 2)'),
        ("units.py", "from carpool.errors import UsageError"),
        ("agent/turns/torch_hooks.py", "import torch"),
        ("agent/turns/turn_taking.py", "def f():\n    import torch"),
        ("agent/turns/turn_taking.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("agent/inject/sitecustomize.py", "import sys\ndef f():\n    from carpool.agent import boot"),
        ("bench/programs/train.py", "import torch"),
        ("__init__.py", "def __getattr__(name):\n    from carpool.agent.api import turn"),
    ],
)
def test_what_is_allowed_is_not_complained_about(name: str, source: str) -> None:
    imports = find_imports(source, name)
    assert [what for rule in IMPORT_RULES for _, what in rule(name, imports)] == []


def test_a_function_that_is_too_long_is_noticed() -> None:
    body = "\n".join("    pass" for _ in range(FUNCTION_LINES_MAX))
    assert list(long_functions(f"def f():\n{body}")) == [(1, "f has 51 lines; 50 are allowed")]
    assert list(long_functions(f"async def f():\n{body[:-9]}")) == []


@pytest.mark.parametrize(
    "source",
    [
        "torch.cuda.synchronize()",
        "self._torch.cuda.empty_cache()",
        "tensor.cuda()",
        "if tensor.is_cuda: pass",
        "torch._C._cuda_clearCublasWorkspaces()",
        "torch._C._host_emptyCache()",
        "torch.empty(1, pin_memory=True)",
        "import torch.cuda",
        "from torch import cuda",
        "from torch.cuda import synchronize",
    ],
)
def test_cuda_outside_its_module_is_noticed(source: str) -> None:
    assert [line for line, _ in cuda_faults("agent/parking/storages.py", source)] == [1]
    assert list(cuda_faults(CUDA_MODULE, source)) == []
    assert list(cuda_faults("bench/programs/train.py", source)) == []


@pytest.mark.parametrize(
    "source",
    [
        'if kind == "cuda": pass',
        'if "cpu" != device.kind.name: pass',
        'if os.environ.get("CARPOOL_DEVICE_KIND") == "cuda": pass',
        'if kind in ("cpu", "cuda"): pass',
        'x = "cuda" not in kinds',
        'match kind:\n    case "cpu":\n        pass',
    ],
)
def test_a_comparison_with_the_name_of_a_kind_is_noticed(source: str) -> None:
    assert [what for _, what in kind_faults("daemon/jobs.py", source) if "ask the kind of device" in what]
    assert list(kind_faults("devices/kinds.py", source)) == []
    assert list(kind_faults(BACKENDS_MODULE, source)) == []


def test_a_kind_that_is_asked_what_it_can_do_is_not_complained_about() -> None:
    source = 'if device.kind.knocks or kind_named("cpu").knocks or kind.name == file.kind or x == "lognormal": pass'
    assert list(kind_faults("daemon/jobs.py", source)) == []


def test_the_word_for_the_kind_of_device_is_no_call_of_cuda() -> None:
    source = 'from carpool.agent import cuda\nif kind == "cuda":\n    cuda.has_graphs(torch)\n'
    assert list(cuda_faults("agent/parking/storages.py", source)) == []


def test_a_path_of_one_machine_is_noticed() -> None:
    for place in ("work", "root", "home"):
        assert [line for line, _ in machine_paths(f"x\ncd /{place}/me")] == [2]
    assert list(machine_paths("see https://example.org/home/page and ~/work/x and tests/work/y")) == []
