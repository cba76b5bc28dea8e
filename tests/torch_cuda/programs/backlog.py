"""Queues kernels without waiting for them, steps its optimizer; prints from when to when the card was busy, in ns."""

from __future__ import annotations

import time

import torch

weight = torch.nn.Parameter(torch.zeros(100, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)
weight.grad = torch.ones_like(weight)
origin = torch.cuda.Event(enable_timing=True)
origin.record()
origin.synchronize()
origin_ns = time.monotonic_ns()
spans = []
for step in range(40):
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.nn.Identity()(weight)  # a begin point: here the turn is asked for, if it was given away
    began.record()
    for _ in range(3):
        torch.cuda._sleep(1)
    ended.record()
    optimizer.step()
    spans.append((began, ended))
    if step % 5 == 4:  # a turn lapses where a program sleeps for half a second, whatever it has queued
        torch.cuda.synchronize()
for began, ended in spans:
    start = origin_ns + int(origin.elapsed_time(began) * 1e6)
    print(start, start + int(began.elapsed_time(ended) * 1e6))
