"""Which module stores to which field of the node's state: a field should have one owner.

State records are the dataclasses of core/node that are not frozen, and plain classes that a record holds. A store is
an assignment to the field, `del`, or a change of the dict, list or set in it (`x.jobs[key] = …`, `x.jobs.append(…)`),
also by way of a local name for it. What a constructor sets is no store, nor what a function does to a record it has
just made, until it hands the record on.

Whose field `x.level` is, is read from annotations: of arguments, of fields, and of what functions return. Where that
does not say, the name decides if only one record has such a field; otherwise every record that has one counts as
stored to, so that nothing is missed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from carpool.testing.house.imports import sources

NODE = "carpool.core.node"
CHANGES = {
    *("append", "extend", "insert", "remove", "sort", "reverse"),
    *("add", "discard", "update", "clear", "pop", "popitem", "setdefault"),
    *("difference_update", "intersection_update", "symmetric_difference_update", "appendleft", "popleft"),
}
ELEMENTS = {"values", "keys", "items", "copy"}
CONSTRUCTORS = {"__init__", "__post_init__", "__new__"}
JOB = "Job"


class Field(NamedTuple):
    """One field of a state record."""

    record: str
    name: str

    def __str__(self) -> str:
        return f"{self.record}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A class of the core with its annotated fields."""

    name: str
    module: str
    is_state: bool
    fields: Mapping[str, str]  # to the annotation, as text


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an expression: its type as an annotation, the field it was read from, whether it is new."""

    type: str = ""
    origin: Field | None = None
    is_new: bool = False  # made here and known to nobody else yet


NOTHING = Known()
Store = tuple[Field, str, int]  # the field, the module, the line


@dataclass(slots=True, kw_only=True)
class Classes:
    """What the annotations of core/node say."""

    records: dict[str, Record] = field(default_factory=dict)
    returns: dict[str, str] = field(default_factory=dict)  # a function or method to what it returns, if all agree

    def having(self, name: str) -> list[Record]:
        """The state records that have such a field."""
        return [record for record in self.records.values() if record.is_state and name in record.fields]


def core_trees() -> dict[str, ast.Module]:
    """The modules of the node's core, parsed."""
    found = sources()
    return {name: ast.parse(path.read_text()) for name, path in found.items() if name.startswith(f"{NODE}.")}


def read_classes(trees: Mapping[str, ast.Module]) -> Classes:
    """All classes and functions of these modules by their annotations."""
    found = Classes()
    returned: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not _is_enum(node):
                found.records[node.name] = _record(node, module)
            elif isinstance(node, ast.FunctionDef) and node.returns is not None:
                returned[node.name].add(ast.unparse(node.returns))
    held = set().union(*(classes_in(kind) for record in found.records.values() for kind in record.fields.values()))
    for name, record in found.records.items():
        if not record.is_state and name in held and not _is_frozen(trees[record.module], name):
            found.records[name] = Record(name=name, module=record.module, is_state=True, fields=record.fields)
    found.returns = {name: kinds.pop() for name, kinds in returned.items() if len(kinds) == 1}
    return found


def _is_enum(node: ast.ClassDef) -> bool:
    return any("Enum" in ast.unparse(base) for base in node.bases)


def _is_frozen(tree: ast.Module, name: str) -> bool:
    """Whether objects of this class cannot change: a frozen dataclass, a named tuple, a protocol."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            marks = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
            return any("frozen=True" in mark or mark in ("NamedTuple", "Protocol", "TypedDict") for mark in marks)
    return False


def _record(node: ast.ClassDef, module: str) -> Record:
    marks = [ast.unparse(each) for each in node.decorator_list]
    is_state = any(mark.startswith("dataclass") and "frozen=True" not in mark for mark in marks)
    fields = {
        each.target.id: ast.unparse(each.annotation)
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        if "ClassVar" not in ast.unparse(each.annotation)
    }
    for each in ast.walk(node):  # a plain class says its fields in its constructor
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            for inner in ast.walk(each):
                if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Attribute):
                    fields.setdefault(inner.target.attr, ast.unparse(inner.annotation))
                elif isinstance(inner, ast.Assign):
                    for target in inner.targets:
                        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                            made = inner.value.func if isinstance(inner.value, ast.Call) else None
                            fields.setdefault(target.attr, made.id if isinstance(made, ast.Name) else "")
    return Record(name=node.name, module=module, is_state=is_state, fields=fields)


def classes_in(annotation: str) -> set[str]:
    """The names in an annotation: {"dict", "JobId", "Job"} for dict[JobId, Job]."""
    if not annotation:
        return set()
    return {node.id for node in ast.walk(ast.parse(annotation, mode="eval")) if isinstance(node, ast.Name)}


def job_records(classes: Classes) -> dict[str, Record]:
    """`Job` and the records it consists of, by what its fields are annotated with."""
    found: dict[str, Record] = {}
    todo = [JOB]
    while todo:
        name = todo.pop()
        record = classes.records.get(name)
        if record is None or name in found:
            continue
        found[name] = record
        todo += sorted(set().union(*(classes_in(kind) for kind in record.fields.values())))
    return found


class Reader(ast.NodeVisitor):
    """Finds the stores of one module."""

    def __init__(self, classes: Classes, module: str) -> None:
        self._classes = classes
        self._module = module
        self._names: list[dict[str, Known]] = [{}]
        self.stores: list[Store] = []
        self.unclear: list[Store] = []  # of these, the ones where the annotations did not say whose field it is

    # --- names --------------------------------------------------------------------------------------------

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append({"self": Known(node.name)})
        self.generic_visit(node)
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in CONSTRUCTORS:
            return
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        said = {each.arg: Known(ast.unparse(each.annotation)) for each in arguments if each.annotation is not None}
        self._names.append(said)
        self.generic_visit(node)
        self._names.pop()

    def _bind(self, target: ast.expr, known: Known) -> None:
        if isinstance(target, ast.Name):
            self._names[-1][target.id] = known
        elif isinstance(target, ast.Tuple):
            kinds = _parts(known.type) if known.type.startswith("tuple[") else []
            for index, each in enumerate(target.elts):
                self._bind(each, Known(kinds[index]) if index < len(kinds) else NOTHING)

    # --- what is known of an expression -------------------------------------------------------------------

    def known(self, node: ast.expr) -> Known:
        match node:
            case ast.Name():
                return next((names[node.id] for names in reversed(self._names) if node.id in names), NOTHING)
            case ast.NamedExpr():
                return self.known(node.value)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return Known(_element(self.known(node.value).type))
            case ast.Call():
                return self._called(node)
            case ast.IfExp():
                return self.known(node.body)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self._comprehended(node)
        return NOTHING

    def _attribute(self, node: ast.Attribute) -> Known:
        for record in self._records(node):
            return Known(record.fields[node.attr], Field(record.name, node.attr))
        return NOTHING

    def _records(self, node: ast.Attribute) -> list[Record]:
        """The records whose field this may be."""
        held = classes_in(self.known(node.value).type)
        named = [self._classes.records[name] for name in sorted(held) if name in self._classes.records]
        if named or held:
            return [record for record in named if node.attr in record.fields]
        return self._classes.having(node.attr)

    def _called(self, node: ast.Call) -> Known:
        match node.func:
            case ast.Name(id="next" | "min" | "max" | "sorted" | "list" | "tuple" | "iter" | "reversed") if node.args:
                inner = self.known(node.args[0])
                taken = node.func.id in ("next", "min", "max")
                return Known(_element(inner.type)) if taken else Known(inner.type)
            case ast.Name():
                name = node.func.id
                if name in self._classes.records:
                    return Known(name, is_new=True)
                return Known(self._classes.returns.get(name, ""))
            case ast.Attribute(attr="get" | "pop" | "setdefault"):
                return Known(_element(self.known(node.func.value).type))
            case ast.Attribute(attr="values" | "copy"):
                kind = self.known(node.func.value).type
                return Known(f"list[{_element(kind)}]" if _element(kind) else "")
            case ast.Attribute(attr="items"):
                kind = self.known(node.func.value).type
                return Known(f"list[tuple[{', '.join(_parts(kind))}]]" if _parts(kind) else "")
            case ast.Attribute():
                return Known(self._classes.returns.get(node.func.attr, ""))
        return NOTHING

    def _comprehended(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Known:
        self._names.append({})
        for loop in node.generators:
            self._bind(loop.target, Known(_element(self.known(loop.iter).type)))
            for each in loop.ifs:
                for inner in ast.walk(each):
                    if isinstance(inner, ast.NamedExpr):
                        self._bind(inner.target, self.known(inner.value))
        kind = self.known(node.elt).type
        self._names.pop()
        return Known(f"list[{kind}]" if kind else "")

    # --- stores -------------------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            pairs: Iterable[tuple[ast.expr, ast.expr | None]] = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            elif isinstance(target, ast.Tuple):
                self._bind(target, self.known(node.value))
                pairs = [(each, None) for each in target.elts if not isinstance(each, ast.Name)]
            for each, value in pairs:
                self._store(each)
                if isinstance(each, ast.Name) and value is not None:
                    self._bind(each, self.known(value))
                elif isinstance(value, ast.Name):
                    self._hand_on(value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if node.value is not None:
            self._store(node.target)
        if isinstance(node.target, ast.Name):
            origin = self.known(node.value).origin if node.value is not None else None
            self._names[-1][node.target.id] = Known(ast.unparse(node.annotation), origin)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        self._store(node.target)

    def visit_Delete(self, node: ast.Delete) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self._store(target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.generic_visit(node)
        self._bind(node.target, self.known(node.value))

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._bind(node.target, Known(_element(self.known(node.iter).type)))
        self._store(node.target)
        for each in (*node.body, *node.orelse):
            self.visit(each)

    def _hand_on(self, node: ast.Name) -> None:
        """Others know the record from now on."""
        known = self.known(node)
        if known.is_new:
            self._names[-1][node.id] = Known(known.type, known.origin)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        for each in node.args:
            if isinstance(each, ast.Name) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
                self._hand_on(each)
        match node.func:
            case ast.Attribute(attr=attr) if attr in CHANGES:
                self._change(node.func.value, node.lineno)
            case ast.Name(id="setattr") if node.args:
                self._unknown_field(node)

    def _store(self, target: ast.expr) -> None:
        match target:
            case ast.Attribute():
                if self.known(target.value).is_new:
                    return
                records = [record for record in self._records(target) if record.is_state]
                self._note([Field(record.name, target.attr) for record in records], target.lineno)
            case ast.Subscript():
                self._change(target.value, target.lineno)
            case ast.Tuple():
                for each in target.elts:
                    self._store(each)

    def _change(self, held: ast.expr, line: int) -> None:
        """The dict, list or set in a field changes."""
        origin = self.known(held).origin
        if isinstance(held, ast.Attribute):
            self._store(held)
        elif isinstance(held, ast.Subscript):  # device.lanes[x].jobs is an attribute again; a dict in a dict is not
            self._change(held.value, line)
        elif origin is not None and self._classes.records[origin.record].is_state:
            self._note([origin], line)

    def _unknown_field(self, node: ast.Call) -> None:
        for name in classes_in(self.known(node.args[0]).type):
            record = self._classes.records.get(name)
            if record is not None and record.is_state:
                self._note([Field(name, each) for each in record.fields], node.lineno)

    def _note(self, fields: list[Field], line: int) -> None:
        stores = [(each, self._module, line) for each in fields]
        self.stores += stores
        if len(fields) > 1:
            self.unclear += stores


def _parts(annotation: str) -> list[str]:
    """What stands between the brackets of an annotation."""
    if not annotation:
        return []
    tree = ast.parse(annotation, mode="eval").body
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            inner = node.slice
            return [ast.unparse(each) for each in (inner.elts if isinstance(inner, ast.Tuple) else [inner])]
    return []


def _element(annotation: str) -> str:
    """What a loop over it, or a look into it, gives: the value of a dict, the element of a list."""
    parts = _parts(annotation)
    return parts[-1] if parts else ""


def stores_in(trees: Mapping[str, ast.Module], classes: Classes) -> tuple[list[Store], list[Store]]:
    """All stores of these modules; and those of which it is not known whose field is meant."""
    stores: list[Store] = []
    unclear: list[Store] = []
    for module, tree in trees.items():
        reader = Reader(classes, module)
        reader.visit(tree)
        stores += reader.stores
        unclear += reader.unclear
    return stores, unclear


def writers(stores: Iterable[Store]) -> dict[Field, list[str]]:
    """Each field that is stored to, with the modules that do."""
    found: dict[Field, set[str]] = defaultdict(set)
    for each, module, _ in stores:
        found[each].add(module)
    return {each: sorted(found[each]) for each in sorted(found)}


def several_writers(found: Mapping[Field, list[str]]) -> Iterator[Field]:
    return (each for each, modules in found.items() if len(modules) > 1)
