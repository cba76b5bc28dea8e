"""Prints `ready`, then the name of each signal it gets; SIGTERM makes it exit with 7. What stops a program stops it.

With `--train` it runs training steps meanwhile, so a signal can arrive while it waits for its turn.
"""

import argparse
import os
import signal
import sys
import time
from types import FrameType

STOPS = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}


def report(number: int, _frame: FrameType | None) -> None:
    # Not print: the signal may have interrupted a print, and a text stream refuses to be re-entered.
    known = [each.name for each in signal.Signals if each == number]
    os.write(1, f"{known[0] if known else number}\n".encode())
    if number == signal.SIGTERM:
        sys.exit(7)


def train_until(end: float) -> None:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    while time.monotonic() < end:
        x = torch.randn(64, 32)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == 3:
            print("ready", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", action="store_true", help="say ready after three training steps")
    parser.add_argument("--seconds", type=float, default=60.0, help="give up and exit 0 after this long")
    args = parser.parse_args()

    for number in signal.valid_signals() - STOPS - FAULTS - {signal.SIGKILL, signal.SIGCHLD}:
        signal.signal(number, report)
    end = time.monotonic() + args.seconds
    if args.train:
        train_until(end)
    else:
        print("ready", flush=True)
        time.sleep(args.seconds)


if __name__ == "__main__":
    main()
