"""A forward pass that waits for its backward pass is found, written and put back, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from carpool.agent.checkpoint import live_graphs
from carpool.agent.checkpoint.live_graphs import NodeNumbers, graph_below, live_roots


class Triple(torch.autograd.Function):  # type: ignore[misc]  # torch has no types for it
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x * 3)
        context.factor = 3
        return x * 3

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        assert context.factor == 3
        return gradient * context.saved_tensors[0]


def roots_of(**tensors: torch.Tensor) -> list[str]:
    return live_roots(torch, tensors, NodeNumbers())


def obstacle_of(tensor: torch.Tensor) -> str:
    return graph_below(torch, {"x": tensor}, ["x"]).obstacle


def test_a_graph_is_live_until_its_backward_pass() -> None:
    model = nn.Linear(3, 3)
    loss, other = model(torch.ones(2, 3)).square().mean(), model(torch.ones(2, 3)).exp()
    assert roots_of(loss=loss, other=other, weight=model.weight) == ["loss", "other"]
    loss.backward()
    assert roots_of(loss=loss, other=other) == ["other"]
    with torch.no_grad():
        assert roots_of(seen=model(torch.ones(2, 3))) == []


def test_a_function_of_python_is_live_until_its_backward_pass() -> None:
    x = torch.ones(2, requires_grad=True)
    tripled = Triple.apply(x)
    assert roots_of(tripled=tripled) == ["tripled"]
    tripled.sum().backward()
    assert roots_of(tripled=tripled) == []


def test_a_graph_too_large_to_be_searched_counts_as_live_and_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    total = torch.zeros(1, requires_grad=True) + 1
    for _ in range(20):
        total = total + 1  # sums keep no values
    assert roots_of(total=total) == []
    monkeypatch.setattr(live_graphs, "GRAPH_NODES_MAX", 10)
    assert roots_of(total=total) == ["total"]
    assert "a forward pass of over 10 operations waits for its backward pass; call backward()" in obstacle_of(total)


def test_what_python_cannot_see_is_an_obstacle() -> None:
    """Values that a hook brings back, an object, what a change in place hides."""
    x, layer = torch.ones(3, 3, requires_grad=True), nn.Linear(3, 3)
    again = checkpoint(lambda y: layer(y).exp(), x, use_reentrant=False)
    assert "keeps a value of type SavedTensor; use detach()" in obstacle_of(again)
    tripled = Triple.apply(x)
    tripled.grad_fn.factor = object()
    assert obstacle_of(tripled) == (
        "TripleBackward, which waits for its backward pass, keeps a value of type object;"
        " use detach() on what is kept, or order the checkpoint after backward()"
    )
    held = torch.zeros(3)
    held[1:] = x.exp()[0, 1:]
    assert "keeps values in C++ that Python cannot read; use detach()" in obstacle_of(held)
    assert obstacle_of(layer(x).exp()) == ""


def test_what_a_replay_made_is_not_live_but_for_what_was_put_back() -> None:
    weight = torch.ones(3, requires_grad=True)
    put_back, skipped = weight.exp(), weight.exp()
    numbers = NodeNumbers()
    numbers.end_replay(torch.autograd._get_sequence_nr())
    numbers.put_back_at(graph_below(torch, {"x": put_back}, ["x"]).numbers)
    now = weight.exp()
    assert live_roots(torch, {"put back": put_back, "skipped": skipped, "now": now}, numbers) == ["put back", "now"]


def test_the_step_after_which_the_oldest_node_was_made_is_known() -> None:
    numbers, weight, losses = NodeNumbers(), torch.ones(3, requires_grad=True), []
    for _ in range(4):
        losses.append(weight.exp())
        numbers.note_step(torch.autograd._get_sequence_nr())
    tensors = {str(number): loss for number, loss in enumerate(losses)}
    assert [graph_below(torch, tensors, [name]).made_after(numbers) for name in tensors] == [0, 1, 2, 3]
    assert graph_below(torch, tensors, ["2", "3"]).made_after(numbers) == 2
    assert graph_below(torch, tensors, []).made_after(numbers) == 4
