"""The package's model and the fingerprint of its weights."""

import hashlib

import torch
from torch import nn


class Regressor(nn.Module):
    """A network of one hidden layer."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, width)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(x)))


def fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha1()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()
