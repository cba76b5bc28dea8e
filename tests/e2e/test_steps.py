"""Steps are iterations: what calls modules beside them is not counted, though turns may change there."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.node import PYTHON, Ended, Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)

class Normalize(nn.Module):  # as torchvision has them: a module without parameters
    def forward(self, image):
        return (image - 0.5) / 0.25

class Flip(nn.Module):
    def forward(self, image):
        return image.flip(-1)

class Images(Dataset):
    transform = nn.Sequential(Normalize(), Flip())
    def __len__(self):
        return 480
    def __getitem__(self, index):
        return self.transform(torch.full((16,), float(index)))

model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
def sgd():
    return torch.optim.SGD(model.parameters(), lr=0.01)
def train(optimizer, batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
PROGRAMS = {
    # 160 calls of a transform and 10 batches: 170 without what is tested here
    "transforms_in_the_loop": (
        10,
        """
transform = Normalize()
for batch in range(10):
    images = torch.stack([transform(torch.rand(16)) for _ in range(16)])
    with torch.no_grad():
        model(images)
""",
    ),
    "transforms_in_the_loader": (
        15,
        """
with torch.no_grad():
    for images in DataLoader(Images(), batch_size=32):
        model(images)
""",
    ),
    "training_with_transforms": (
        20,
        """
optimizer, images = sgd(), Images()
with torch.no_grad():
    mean = torch.stack([images[index] for index in range(200)]).mean()
for step in range(20):
    train(optimizer, torch.stack([images[index] for index in range(8)]) - mean)
""",
    ),
    # 12 updates after 100 calls of the policy each
    "reinforcement": (
        12,
        """
optimizer = sgd()
for update in range(12):
    with torch.no_grad():
        seen = [model.forward(torch.rand(1, 16)) for _ in range(100)]
    train(optimizer, torch.rand(32, 16))
""",
    ),
    "optimizer_made_after_the_rollout": (
        12,
        """
with torch.no_grad():
    for _ in range(150):
        model(torch.rand(1, 16))
optimizer = sgd()
for update in range(12):
    train(optimizer, torch.rand(32, 16))
""",
    ),
    "evaluation_before_and_between": (
        24,
        """
def evaluate():
    model.eval()
    with torch.no_grad():
        for _ in range(90):
            model(torch.rand(8, 16))
    model.train()
evaluate()
optimizer = sgd()
for epoch in range(4):
    for _ in range(6):
        train(optimizer, torch.rand(32, 16))
    evaluate()
""",
    ),
    "manual_update_after_an_evaluation": (
        18,
        """
with torch.no_grad():
    for _ in range(30):
        model(torch.rand(8, 16))
for step in range(18):
    model(torch.rand(8, 16)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
""",
    ),
    # A model may have no parameters (quantised ones hold packed weights); if nothing else is called, it is the model.
    "a_model_without_parameters": (
        40,
        """
bare = Normalize()
with torch.no_grad():
    for _ in range(40):
        bare(torch.rand(16))
""",
    ),
    "plain_training": (
        25,
        """
optimizer = sgd()
for step in range(25):
    train(optimizer, torch.rand(32, 16))
""",
    ),
    "plain_inference": (
        70,
        """
with torch.inference_mode():
    for _ in range(70):
        model(torch.rand(8, 16))
""",
    ),
}


@pytest.fixture(scope="module")
def ended(module_node: Node) -> Iterator[dict[str, Ended]]:
    """All of them beside each other, with so short a quantum that turns change everywhere."""
    module_node.start(quantum="2ms")
    started = {
        name: module_node.run(PYTHON, "-c", HEAD + text, options=["--name", name, "--memory", "250MiB"])
        for name, (_, text) in PROGRAMS.items()
    }
    yield {name: each.wait() for name, each in started.items()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_are_iterations(module_node: Node, ended: dict[str, Ended], name: str) -> None:
    assert (ended[name].code, ended[name].err) == (0, "")
    job = module_node.wait_state(name, "finished", "failed")
    assert job["steps"] == PROGRAMS[name][0]
    assert module_node.turns(name) >= 1


def test_a_program_is_remembered_with_its_iterations(module_node: Node, ended: dict[str, Ended]) -> None:
    """The next run of the same program is taken to be as long as this one (srtf)."""
    remembered = [effect["history"]["steps"] for effect in module_node.journal("RememberJob")]
    assert sorted(remembered) == sorted(steps for steps, _ in PROGRAMS.values()), json.dumps(remembered)
