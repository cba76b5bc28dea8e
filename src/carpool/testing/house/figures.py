"""The figures of the house with their bounds, and the names behind each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from carpool.testing.house import decisions, fields, imports, rules, words

SCHEDULERS = {
    "carpool.core.node.scheduler",
    "carpool.core.cluster.scheduler",
}  # they call every part, and nobody else
BOUNDS = {
    "core_imports_max": 10,
    "core_depth": 8,
    "fields_with_several_writers": 0,
    "job_fields_max": 20,
    "modules_of_handover": 7,
    "modules_of_suspend": 10,
    "modules_of_waiting_allocation": 12,
    "rules_defined_twice": 0,
    "rules_untested": 0,
    "words_undefined": 0,
}
# Where a bound is not met yet: what the figure was when it was last improved. The tests let nothing become worse.
RATCHET: dict[str, int] = {}
WHAT = {
    "core_imports_max": "most imports of one core module, the two schedulers left out",
    "core_depth": "longest chain of imports in the core, those for types included",
    "fields_with_several_writers": "fields of the node's state that several modules store to",
    "job_fields_max": "most fields of one record of a job",
    "modules_of_handover": "core modules that run when a turn goes to the next job",
    "modules_of_suspend": "core modules that run when somebody suspends a job",
    "modules_of_waiting_allocation": "core modules that run when an allocation blocks its job",
    "rules_defined_twice": "ids of rules that are defined more than once",
    "rules_untested": "rules that no test names",
    "words_undefined": "modules and states that the glossary lacks",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number, and what it counts or consists of."""

    value: int
    names: tuple[str, ...]


def core_imports() -> Figure:
    graph = {name: len(targets) for name, targets in imports.within(imports.graph(), imports.CORE).items()}
    counted = {name: count for name, count in graph.items() if name not in SCHEDULERS}
    most = sorted(counted, key=lambda name: (-counted[name], name))
    bound = BOUNDS["core_imports_max"]
    shown = [name for name in most if counted[name] > bound] or most[:1]
    return Figure(value=counted[most[0]], names=tuple(f"{imports.short(name)} {counted[name]}" for name in shown))


def core_depth() -> Figure:
    chain = imports.longest_chain(imports.within(imports.graph(), imports.CORE))
    return Figure(value=len(chain), names=(" > ".join(imports.short(name) for name in chain),))


def several_writers() -> Figure:
    trees = fields.core_trees()
    stores, unclear = fields.stores_in(trees, fields.read_classes(trees))
    found = fields.writers(stores)
    names = [f"{each}: {_short_list(found[each])}" for each in fields.several_writers(found)]
    doubts = [f"not clear whose: {each} in {imports.short(module)}:{line}" for each, module, line in unclear]
    return Figure(value=len(names), names=(*names, *doubts))


def _short_list(modules: Iterable[str]) -> str:
    return ", ".join(module.removeprefix(f"{fields.NODE}.") for module in modules)


def job_fields() -> Figure:
    records = fields.job_records(fields.read_classes(fields.core_trees()))
    counts = sorted(((len(record.fields), name) for name, record in records.items()), reverse=True)
    return Figure(value=counts[0][0], names=tuple(f"{name} {count}" for count, name in counts))


def modules_of(decision: str) -> Figure:
    modules = decisions.worst(decision).modules
    return Figure(value=len(modules), names=(", ".join(modules),))


def _listed(names: Iterable[str]) -> Figure:
    found = list(names)
    return Figure(value=len(found), names=(", ".join(found),) if found else ())


FIGURES: Mapping[str, Callable[[], Figure]] = {
    "core_imports_max": core_imports,
    "core_depth": core_depth,
    "fields_with_several_writers": several_writers,
    "job_fields_max": job_fields,
    "modules_of_handover": lambda: modules_of("handover"),
    "modules_of_suspend": lambda: modules_of("suspend"),
    "modules_of_waiting_allocation": lambda: modules_of("waiting_allocation"),
    "rules_defined_twice": lambda: _listed(rules.defined_twice(rules.find_rules())),
    "rules_untested": lambda: _listed(rules.untested(rules.find_rules())),
    "words_undefined": lambda: _listed(words.undefined()),
}


def measure() -> dict[str, Figure]:
    """All figures, in the order of their list."""
    return {name: make() for name, make in FIGURES.items()}


def allowed(name: str) -> int:
    """What the tests allow: the bound, or what there was before where that is not met yet."""
    return max(BOUNDS[name], RATCHET.get(name, 0))


def broken(found: Mapping[str, Figure]) -> list[str]:
    """The figures that are above their bounds."""
    return [name for name, figure in found.items() if figure.value > BOUNDS[name]]
