"""Forward passes that still wait for their backward pass when a checkpoint is taken, or that nobody ever takes back.

A program often keeps one: the values of its last action, a loss that is only printed. What autograd keeps for the
backward pass hangs on the nodes of its graph, and may be in no variable. So these tensors are named by their nodes,
written with the others, and put back into the same nodes of a replay. That has to have made them too: it computes for
real from the step after which the oldest of them was made (`made_after`).

A graph whose nodes keep what cannot be seen from here is an obstacle, with its reason: values that a hook brings
back, objects, the state of C++ code.

Autograd counts nodes by thread. On a GPU `backward(create_graph=True)` makes nodes in autograd's own threads, with
numbers that say nothing here. So the steps of a program that calls it cannot be skipped. Not covered:
`torch.autograd.grad(create_graph=True)` inside a module's own call, which makes such nodes too.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

GRAPH_NODES_MAX = 20_000
ADVICE = "use detach() on what is kept, or order the checkpoint after backward()"
OPAQUE = ("CppFunction", "CopySlices")  # the types of nodes whose values Python cannot see
AS_TEXT = (int, float, complex, bool, str, type(None))  # what a node keeps of these types is compared as text
LEAVES_FROM = 1 << 63  # the nodes of leaves have the highest number there is, whenever they were made


@dataclass(slots=True)
class NodeNumbers:
    """The numbers that autograd gives the nodes of this process: they tell when each was made."""

    at_steps: array[int] = field(default_factory=lambda: array("Q"))  # the next number, at each step
    first_true: int | None = None  # lower ones are of a replay, and keep no true values, but for those put back
    put_back: frozenset[int] = frozenset()

    def note_step(self, number: int) -> None:
        """At a step: nodes made from now on have this number or a higher one."""
        self.at_steps.append(number)

    def end_replay(self, number: int) -> None:
        """Where the state is put back: nodes made until now keep what skipped computation gave."""
        self.first_true = number

    def put_back_at(self, numbers: list[int]) -> None:
        """These nodes have got the values that the recorded run had in them."""
        self.put_back = frozenset(numbers)

    def is_true(self, number: int) -> bool:
        return self.first_true is None or number >= self.first_true or number in self.put_back


@dataclass(slots=True)
class LiveGraph:
    """The graph below some tensors of the program."""

    roots: list[str] = field(default_factory=list)  # the names of these tensors
    nodes: list[str] = field(default_factory=list)  # what each is, and which ones it leads to
    tensors: dict[str, Any] = field(default_factory=dict)  # what they keep
    numbers: list[int] = field(default_factory=list)
    obstacle: str = ""

    def made_after(self, numbers: NodeNumbers) -> int:
        """The step after which the oldest of its nodes was made."""
        return bisect_right(numbers.at_steps, min(self.numbers, default=LEAVES_FROM))

    def contents(self) -> dict[str, Any]:
        return {"roots": self.roots, "nodes": self.nodes}


def live_roots(torch: Any, tensors: dict[str, Any], numbers: NodeNumbers) -> list[str]:
    """The tensors that lead to a node with values."""
    ends = {name: tensor.grad_fn for name, tensor in tensors.items() if tensor.grad_fn is not None}
    before: dict[Any, list[Any]] = {}  # which nodes lead to a node
    todo = list(dict.fromkeys(ends.values()))
    seen = set(todo)
    live = []
    while todo:
        node = todo.pop()
        if len(seen) > GRAPH_NODES_MAX:  # what was not searched counts as live
            return list(ends)
        if numbers.is_true(node._sequence_nr()) and _holds_values(torch, node):
            live.append(node)
        for each, _ in node.next_functions:
            if each is not None:
                before.setdefault(each, []).append(node)
                if each not in seen:
                    seen.add(each)
                    todo.append(each)
    reached = set(live)
    while live:
        for each in before.get(live.pop(), ()):
            if each not in reached:
                reached.add(each)
                live.append(each)
    return [name for name, node in ends.items() if node in reached]


def graph_below(torch: Any, tensors: dict[str, Any], roots: list[str]) -> LiveGraph:
    """The whole graph below these tensors, in an order that two runs of one program share."""
    graph = LiveGraph(roots=roots)
    ends = [tensors[name].grad_fn for name in roots if name in tensors]
    todo = deque(dict.fromkeys(node for node in ends if node is not None))
    places = {node: place for place, node in enumerate(todo)}
    while todo and not graph.obstacle:
        node = todo.popleft()
        edges = []
        for each, entry in node.next_functions:
            if each is not None and each not in places:
                places[each] = len(places)
                todo.append(each)
            edges.append((places.get(each), entry))
        _note(torch, graph, node, edges)
        if len(places) > GRAPH_NODES_MAX:
            graph.obstacle = (
                f"a forward pass of over {GRAPH_NODES_MAX:,} operations waits for its backward pass;"
                " call backward(), or detach() what is kept"
            )
    return graph


def _note(torch: Any, graph: LiveGraph, node: Any, edges: list[tuple[int | None, int]]) -> None:
    name, plain = f"node {len(graph.nodes)} {node.name()}", list[str]()
    if type(node).__name__ in OPAQUE:
        graph.obstacle = (
            f"{node.name()}, which waits for its backward pass, keeps values in C++ that Python cannot read; {ADVICE}"
        )
        return
    number = node._sequence_nr()
    if number < LEAVES_FROM:
        graph.numbers.append(number)
    for key, value in _kept(torch, node):
        if isinstance(value, torch.Tensor):
            graph.tensors[f"{name}.{key}"] = value
        elif _is_plain(torch, value):
            plain.append(f"{key}={value!r}")
        else:
            kind = type(value).__name__
            graph.obstacle = (
                f"{node.name()}, which waits for its backward pass, keeps a value of type {kind}; {ADVICE}"
            )
            return
    graph.nodes.append(f"{node.name()} {plain} {edges}")


def _kept(torch: Any, node: Any) -> Iterator[tuple[str, Any]]:
    """What this node keeps, if its backward pass was not made."""
    if isinstance(node, torch._C._FunctionBase):  # a Python class: what it saved, and its attributes
        saved = list(_kept_as(node, "saved_tensors", "_raw_saved_tensors"))
        if saved:
            yield from saved
            for key, value in vars(node).items():
                yield from _flat(key, value)
        return
    if hasattr(node, "variable"):
        yield "variable", node.variable
    for key in dir(node):
        if key.startswith("_saved_"):
            yield from _kept_as(node, key, f"_raw{key}")


def _kept_as(node: Any, key: str, raw: str) -> Iterator[tuple[str, Any]]:
    with contextlib.suppress(RuntimeError):  # its backward pass is over, or can never be made
        found = getattr(node, raw, ())
        for each in found if isinstance(found, tuple) else (found,):
            if each is not None and getattr(each, "unpack_hook", each) is not None:
                yield key, each  # a hook brings the values back: they are somewhere else
                return
        yield from list(_flat(key, getattr(node, key)))


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if type(value) in (tuple, list) and value:
        for place, each in enumerate(value):
            yield from _flat(f"{key}[{place}]", each)
    else:
        yield key, value


def _is_plain(torch: Any, value: Any) -> bool:
    return type(value) in (*AS_TEXT, torch.dtype, torch.device, torch.layout, torch.memory_format) or value == ()


def _holds_values(torch: Any, node: Any) -> bool:
    is_leaf = hasattr(node, "variable")
    return not is_leaf and any(not _is_plain(torch, value) for _, value in _kept(torch, node))
