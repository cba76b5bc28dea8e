"""Moves this process's CUDA storages out and in again by the agent's own code; says what was seen, as JSON."""

from __future__ import annotations

import hashlib
import json

import torch
from torch.multiprocessing.reductions import StorageWeakRef, shared_cache

from carpool.agent.parking.storages import make_storages

MIB = 1 << 20


def digest(tensors: list[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(each.detach().cpu().numpy().tobytes() for each in tensors)).hexdigest()


def held() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free


large = torch.randint(0, 256, (150 * MIB + 12345,), dtype=torch.uint8).cuda()  # more than two pieces of the store
weight = torch.nn.Parameter(torch.randn(300, 200).cuda())
weight.grad = torch.randn(300, 200).cuda()
tied, part = weight.detach().t(), weight.detach()[100:200]
sent = torch.randn(5000).cuda()
shared_cache["as if sent"] = StorageWeakRef(sent.untyped_storage())  # what torch notes when another process gets it
torch.randn(64, 300).cuda() @ weight  # makes cuBLAS's workspace
tensors = [large, weight, weight.grad, part.contiguous(), sent]
before, held_before = digest(tensors), held()

storages = make_storages(torch, "cuda", None)
assert storages is not None
moved = storages.move_out(1 << 40)
found = {
    "moved": moved,
    "held_before": held_before,
    "held_away": held(),
    "sizes_away": [each.untyped_storage().nbytes() for each in (large, weight, weight.grad, tied, part, sent)],
    "locked": torch.cuda.host_memory_stats()["allocated_bytes.current"],
}
storages.move_in()
found |= {"is_same": digest(tensors) == before, "is_tied": torch.equal(tied.t().cpu(), weight.detach().cpu())}
again = torch.randint(0, 256, (70 * MIB,), dtype=torch.uint8).cuda()
tensors.append(again)
after = digest(tensors)
moved_again = storages.move_out(1 << 40)
storages.move_in()
found |= {
    "moved_again": moved_again,
    "is_same_again": digest(tensors) == after,
    "locked_again": torch.cuda.host_memory_stats()["allocated_bytes.current"],
    "obstacle": storages.obstacle(),
}
graph = torch.cuda.CUDAGraph()
found["obstacle_with_graph"] = storages.obstacle()
print(json.dumps(found))
