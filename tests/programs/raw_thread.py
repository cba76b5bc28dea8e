"""A thread that `threading` does not know reads a tensor all the time."""

import _thread
import sys
import time

import torch

net = torch.nn.Linear(400, 400)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
count, is_over = torch.zeros(1 << 14), []


def watch() -> None:
    while not is_over:
        count[5].item()
        time.sleep(0.001)


_thread.start_new_thread(watch, ())
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    net(torch.ones(1, 400)).sum().backward()
    count.copy_(count + 1)
    optimizer.step()
    time.sleep(0.05)
is_over.append(True)
print("done", count[5].item())
