"""A served model for `carpool bench idle`: an HTTP server in one thread, a forward of a few milliseconds a request.

It writes the port to PORT when it serves. Each answer has two numbers: when the forward's last operation was over,
and how long the forward took. It ends when it is asked for `/end`.
"""

from __future__ import annotations

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import torch
from torch import Tensor, nn

WIDTH = 384
ROUNDS_MAX = 400


class Model(nn.Module):
    """As many layers, one after the other, as take FORWARD seconds here; notes when the last of them is over."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.rounds = 1
        self.began_ns = self.ended_ns = 0

    def forward(self, batch: Tensor) -> Tensor:
        self.began_ns = time.monotonic_ns()
        for _ in range(self.rounds):
            batch = torch.tanh(self.layer(batch))
        self.ended_ns = time.monotonic_ns()
        return batch


def fit(model: Model, batch: Tensor, seconds: float) -> None:
    """Choose the number of rounds; the shortest of some tries counts, since others may be computing."""
    shortest = seconds
    model.rounds = 16
    for _ in range(8):
        model.forward(batch)  # no call of a module: no turn is taken for it
        shortest = min(shortest, (model.ended_ns - model.began_ns) / 1e9)
    model.rounds = max(1, min(ROUNDS_MAX, round(16 * seconds / shortest)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=Path, required=True, help="write the port here")
    parser.add_argument("--forward", type=float, default=0.002, help="seconds")
    args = parser.parse_args()
    torch.manual_seed(0)
    model, batch = Model(), torch.randn(16, WIDTH)
    with torch.no_grad():
        fit(model, batch, args.forward)
    is_over = False

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802 - the name is http.server's
            nonlocal is_over
            is_over = self.path == "/end"
            if not is_over:
                with torch.no_grad():
                    model(batch)
            body = json.dumps([model.ended_ns, model.ended_ns - model.began_ns]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    draft = args.port.with_name(f"{args.port.name}.new")
    draft.write_text(str(server.server_port))
    draft.replace(args.port)
    while not is_over:
        server.handle_request()


if __name__ == "__main__":
    main()
