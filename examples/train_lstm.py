"""Train an LSTM language model on a random grammar, with plain SGD, clipping and truncated backpropagation.

The hidden state is carried from one step to the next, so this program keeps more than its weights alive
between iterations.
"""

import argparse
import hashlib
import math
import random
from collections.abc import Iterable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

VOCABULARY = 1_000
State = tuple[Tensor, Tensor]


def make_words(length: int, seed: int) -> Tensor:
    """A walk in which each word may be followed by only four others: about 1.39 nats a word at best."""
    rng = random.Random(seed)
    followers = [rng.sample(range(VOCABULARY), 4) for _ in range(VOCABULARY)]
    words = [0]
    while len(words) < length:
        words.append(rng.choice(followers[words[-1]]))
    return torch.tensor(words)


class LanguageModel(nn.Module):
    """Embedding, LSTM, and an output layer that shares its matrix with the embedding."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=0.2)
        self.head = nn.Linear(width, VOCABULARY)
        self.dropout = nn.Dropout(0.2)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor, state: State | None) -> tuple[Tensor, State]:
        output, state = self.lstm(self.dropout(self.embedding(words)), state)
        return self.head(self.dropout(output)), state


def fingerprint(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--time", type=int, default=35, help="words per step")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="save the weights here at the end")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    words = make_words(100_000, args.seed)
    columns = words[: len(words) // args.batch * args.batch].view(args.batch, -1).t().contiguous().to(device)
    model = LanguageModel(args.width, args.layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)

    state: State | None = None
    place, value = 0, math.nan
    for step in range(1, args.steps + 1):
        if place + args.time >= len(columns):
            place, state = 0, None
        inputs = columns[place : place + args.time]
        targets = columns[place + 1 : place + args.time + 1]
        place += args.time
        if state is not None:
            state = (state[0].detach(), state[1].detach())
        logits, state = model(inputs, state)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        if step % 5 == 0 or step == args.steps:
            value = loss.item()
            print(f"step={step} loss={value!r} perplexity={math.exp(value):.2f}", flush=True)
    if args.out:
        torch.save(model.state_dict(), args.out)
    print(f"done steps={args.steps} loss={value!r} weights={fingerprint(model.parameters())}", flush=True)


if __name__ == "__main__":
    main()
