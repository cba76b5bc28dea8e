"""The state of a program at one of its steps: taken, hashed, written to a checkpoint, put back into another process.

It holds every tensor of the program byte for byte, with its views and ties (a storage is saved once). It holds the
random states of torch, numpy, Python and every generator of the program, and the plain values of its modules and
optimizers. A state that cannot be put into a file faithfully is refused with a reason.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import sys
from types import FrameType
from typing import Any

from carpool.agent import cuda
from carpool.agent.checkpoint.live_graphs import LiveGraph, NodeNumbers, graph_below, live_roots
from carpool.agent.checkpoint.tensor_names import Named, Namer, storage_of
from carpool.errors import RefusedError
from carpool.wire.checkpoint import CheckpointFile, CheckpointWriter


class Snapshot:
    """The named state of this process, now."""

    def __init__(self, torch: Any, before: set[int], frame: FrameType | None) -> None:
        self._torch = torch
        self._named: Named = Namer(torch, before).name_all(frame)
        self._storages: dict[int, Any] = {}  # by identity, in the order of their first tensor
        for tensor in self._named.tensors.values():
            self._storages.setdefault(storage_of(tensor), tensor)
        self._graph = LiveGraph()

    def obstacle(self) -> str:
        """Why this state cannot be moved faithfully; empty if it can."""
        return self.why_no_bytes() or self.why_no_name()

    def why_no_bytes(self) -> str:
        """Why one of its tensors cannot be written; empty if all can."""
        for path, tensor in self._named.tensors.items():
            if tensor.layout is not self._torch.strided or tensor.is_quantized or tensor.device.type == "meta":
                return f"its tensor {path} ({tensor.layout}, {tensor.device}) has no plain bytes"
            if type(tensor) not in (self._torch.Tensor, self._torch.nn.Parameter, self._torch.nn.Buffer):
                return f"its tensor {path} is a {type(tensor).__name__}"
        return ""

    def why_no_name(self) -> str:
        """Why a tensor cannot be named: no variable leads to it. Not asked where a replay ends: a skipped backward
        pass frees nothing, and the recorded run had none of these."""
        nameless = [each for each in self._named.nameless if storage_of(each) not in self._storages]
        if nameless:
            first = nameless[0]
            return (
                f"it holds {len(nameless)} tensors that none of its variables leads to, one of shape"
                f" {tuple(first.shape)}"
            )
        return ""

    def is_seen_by_numpy(self) -> bool:
        """Whether the program keeps an array of numpy's in which it sees its weights change: no read tells that."""
        weights = {storage_of(each) for each in self._named.tensors.values() if each.requires_grad and each.is_leaf}
        return any(storage_of(each) in weights for each in self._named.numpy_bases)

    def live_roots(self, numbers: NodeNumbers) -> list[str]:
        """The tensors on which a forward pass hangs that still waits for its backward pass."""
        return live_roots(self._torch, self._named.tensors, numbers)

    def hold_graph(self, roots: list[str]) -> LiveGraph:
        """Count what hangs on these tensors to the state."""
        self._graph = graph_below(self._torch, self._named.tensors, roots)
        self._named.tensors |= self._graph.tensors
        for tensor in self._graph.tensors.values():
            self._storages.setdefault(storage_of(tensor), tensor)
        return self._graph

    # --- out ----------------------------------------------------------------------------------------------

    def table(self) -> list[list[Any]]:
        """Every tensor: its name, its storage by number, and how it looks at it."""
        numbers = {identity: number for number, identity in enumerate(self._storages)}
        return [
            [
                path,
                numbers[storage_of(tensor)],
                str(tensor.dtype),
                list(tensor.size()),
                list(tensor.stride()),
                tensor.storage_offset(),
                bool(tensor.requires_grad),
                str(tensor.device),
            ]
            for path, tensor in self._named.tensors.items()
        ]

    def digest(self) -> str:
        """A hash of the whole state."""
        digest = hashlib.blake2b(repr(self.table()).encode(), digest_size=32)
        seen = set()
        for row, tensor in zip(self.table(), self._named.tensors.values(), strict=True):
            look = repr(row[1:6])
            if look not in seen and tensor.numel():  # not storages: some have bytes that belong to no element
                seen.add(look)
                digest.update(self._elements_of(tensor))
        digest.update(repr(sorted(self.random_states().items())).encode())
        for path, (_, _, value) in sorted(self._named.put_back.items()):
            digest.update(f"{path}={value!r}\n".encode(errors="backslashreplace"))
        return digest.hexdigest()

    def write(self, writer: CheckpointWriter) -> dict[str, Any]:
        """Write the bytes; returns what the contents of the file say of them."""
        return {
            "tensors": self.table(),
            "storages": [writer.add(self._bytes_of(tensor)) for tensor in self._storages.values()],
            "random": self.random_states(),
            "compared": self._named.compared,
            "put_back": {path: value for path, (_, _, value) in self._named.put_back.items()},
            "graph": self._graph.contents(),
        }

    def _flat(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        return self._torch.empty(0, dtype=self._torch.uint8, device=storage.device).set_(storage)

    def _bytes_of(self, tensor: Any) -> memoryview:
        with self._torch.no_grad():
            return _bytes_of(self._flat(tensor).cpu())

    def _elements_of(self, tensor: Any) -> memoryview:
        torch = self._torch
        with torch.no_grad():
            plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
            # One number counts as contiguous with any stride, and only with 1 can it be looked at as bytes.
            return _bytes_of(plain.as_strided((plain.numel(),), (1,)).view(torch.uint8))

    def random_states(self) -> dict[str, Any]:
        torch, numpy = self._torch, sys.modules.get("numpy")
        states: dict[str, Any] = {"torch": _hex(torch.get_rng_state()), "python": _python_state()}
        if numpy is not None:
            kind, words, *rest = numpy.random.get_state()
            states["numpy"] = [kind, words.tolist(), *rest]
        if on_cards := cuda.random_states(torch):
            states["cuda"] = [_hex(state) for state in on_cards]
        states.update({f"at {path}": _hex(each.get_state()) for path, each in self._named.generators.items()})
        return states

    # --- in -----------------------------------------------------------------------------------------------

    def put_back(self, file: CheckpointFile) -> None:
        """Make this process's state that of the checkpoint; a RefusedError if it does not fit."""
        saved = file.contents["state"]
        self._compare_shape(saved)
        for number, tensor in zip(saved["storages"], self._storages.values(), strict=True):
            data = self._torch.frombuffer(file.read(number), dtype=self._torch.uint8) if number[1] else None
            if data is not None:
                with self._torch.no_grad():
                    self._flat(tensor).copy_(data)
        for path, (owner, key, value) in self._named.put_back.items():
            wanted = saved["put_back"][path]
            if wanted != value or type(wanted) is not type(value):
                owner[key] = wanted
        self._put_back_random(saved["random"])

    def _compare_shape(self, saved: dict[str, Any]) -> None:
        here, there = {row[0]: row[1:] for row in self.table()}, {row[0]: row[1:] for row in saved["tensors"]}
        for path in [*there, *here]:
            if here.get(path) != there.get(path):
                raise RefusedError(
                    f"its tensor {path} is {_look(here.get(path))} here and {_look(there.get(path))} there"
                )
        sizes = [self._flat(tensor).numel() for tensor in self._storages.values()]
        if sizes != [length for _, length in saved["storages"]]:
            raise RefusedError("its tensors lie differently in memory")
        self.compare_values(saved)
        states = self.random_states()
        for name in ("python", "numpy"):
            if _plain(states.get(name)) != _plain(saved["random"].get(name)):
                raise RefusedError(
                    f"its random state of {name} is another than in the recorded run: perhaps its modules use it, and"
                    " their calls were skipped; try --recompute"
                )
        for kind, mine, theirs in (
            ("value", self._named.put_back, saved["put_back"]),
            ("random state", states, saved["random"]),
        ):
            odd = sorted(set(mine) ^ set(theirs))
            if odd:
                raise RefusedError(f"its {kind} {odd[0]} is only on one side")

    def compare_graph(self, saved: dict[str, Any]) -> None:
        """The nodes to which values are put back must be those that had them."""
        if self._graph.obstacle:
            raise RefusedError(f"after the replay {self._graph.obstacle}")
        here, there = self._graph.nodes, saved["graph"]["nodes"]
        if here != there:
            raise RefusedError(
                f"the {len(here)} operations that wait for a backward pass after the replay are not the {len(there)}"
                " that did before; try --recompute"
            )

    def compare_values(self, saved: dict[str, Any]) -> None:
        """The program's own whole numbers must be those of the recorded run."""
        here, there = self._named.compared, saved["compared"]
        for path in [*there, *here]:
            if path not in here or path not in there or here[path] != there[path]:
                raise RefusedError(
                    f"its variable {path} is {here.get(path, 'not there')} after the replay and was"
                    f" {there.get(path, 'not there')}"
                )

    def _put_back_random(self, states: dict[str, Any]) -> None:
        torch, numpy = self._torch, sys.modules.get("numpy")
        torch.set_rng_state(_state(torch, states["torch"]))
        version, words, gauss = states["python"]
        random.setstate((version, tuple(words), gauss))
        if numpy is not None and "numpy" in states:
            kind, numbers, *rest = states["numpy"]
            numpy.random.set_state((kind, numpy.array(numbers, dtype=numpy.uint32), *rest))
        if on_cards := states.get("cuda"):
            cuda.put_back_random(torch, [_state(torch, each) for each in on_cards])
        for path, each in self._named.generators.items():
            each.set_state(_state(torch, states[f"at {path}"]))


def _bytes_of(plain: Any) -> memoryview:
    """The memory of a tensor of bytes, without a copy, and not by way of numpy: torch never again resizes a storage
    that numpy has seen, so the program's tensors could not be parked after their first checkpoint."""
    array = (ctypes.c_ubyte * plain.numel()).from_address(plain.data_ptr())
    array.tensor = plain  # it may be a copy, which must live as long as the view does
    return memoryview(array)


def _plain(state: Any) -> str:
    """As JSON knows it: a tuple and a list are the same there."""
    return json.dumps(state)


def _hex(state: Any) -> str:
    return bytes(state.tolist()).hex()


def _state(torch: Any, text: str) -> Any:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)


def _python_state() -> list[Any]:
    version, words, gauss = random.getstate()
    return [version, list(words), gauss]


def _look(row: list[Any] | None) -> str:
    return "not there" if row is None else f"{row[1]} of shape {tuple(row[2])}"
