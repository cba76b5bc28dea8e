"""What torch sees of its card, and whether it can use it; one JSON object."""

from __future__ import annotations

import json

import torch

found = {"is_available": torch.cuda.is_available(), "count": torch.cuda.device_count()}
properties = torch.cuda.get_device_properties(0)
found |= {
    "name": properties.name,
    "total": properties.total_memory,
    "capability": list(torch.cuda.get_device_capability()),
    "processors": properties.multi_processor_count,
    "free": torch.cuda.mem_get_info()[0],
}

here = torch.randn(1000, 33)
there = here.to("cuda")
found["is_same"] = torch.equal(there.cpu(), here) and torch.equal(there.clone()[500:].cpu(), here[500:])
there.untyped_storage().fill_(0)
locked = here.pin_memory()
found["is_pinned"] = [locked.is_pinned(), locked[10:].is_pinned(), here.is_pinned()]
found["is_same_locked"] = torch.equal(locked.to("cuda", non_blocking=True).cpu(), here)

a, b = torch.randn(40, 60), torch.randn(60, 50)
found["is_product"] = torch.allclose((a.cuda() @ b.cuda()).cpu(), a @ b, atol=1e-4)
linear = torch.nn.Linear(60, 30)
by_host = linear(a)
found["is_linear"] = torch.allclose(linear.cuda()(a.cuda()).cpu(), by_host, atol=1e-4)

model = torch.nn.Sequential(torch.nn.Embedding(50, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scores = model(torch.randint(0, 50, (8, 5)).cuda()).mean(1)
torch.nn.functional.cross_entropy(scores, torch.randint(0, 10, (8,)).cuda()).backward()
optimizer.step()
found["states"] = len(optimizer.state)

side, began, ended = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
with torch.cuda.stream(side):
    began.record()
    for _ in range(10):
        torch.cuda._sleep(1)
    ended.record()
side.synchronize()
found["ms"] = began.elapsed_time(ended)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torch.cuda._sleep(1)
graph.replay()
torch.cuda.synchronize()

before = torch.cuda.memory_allocated()
try:
    torch.empty(properties.total_memory + 1, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    found["refusal"] = str(error)
found["is_unchanged"] = torch.cuda.memory_allocated() == before
half = torch.empty(properties.total_memory // 2, dtype=torch.uint8, device="cuda")
found["left"] = torch.cuda.mem_get_info()[0]
del half
torch.cuda.empty_cache()
found["left_after"] = torch.cuda.mem_get_info()[0]
print(json.dumps(found))
