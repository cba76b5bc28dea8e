"""cuda-core: buffers of every memory resource, a launch, a graph, events; figures and the refusal, as JSON."""

import json
import sys

from cuda.bindings import driver
from cuda.core import (
    Device,
    EventOptions,
    GraphMemoryResource,
    LaunchConfig,
    ManagedMemoryResource,
    ObjectCode,
    PinnedMemoryResource,
    VirtualMemoryResource,
    launch,
    system,
)
from cuda.core._utils.cuda_utils import CUDAError

size = int(sys.argv[1]) << 20
device = Device(0)
device.set_current()
stream = device.create_stream()


def free_mib():
    stream.sync()
    return driver.cuMemGetInfo()[1] >> 20


used = {}
for name, resource in {
    "default": device.memory_resource,
    "managed": ManagedMemoryResource(),
    "virtual": VirtualMemoryResource(device),
    "pinned": PinnedMemoryResource(),
}.items():
    before = free_mib()
    buffer = resource.allocate(64 << 20, stream=stream)
    used[name] = before - free_mib()
    buffer.close(stream)

held = device.allocate(size, stream=stream)
try:
    device.allocate(size, stream=stream)
    refusal = ""
except CUDAError as error:
    refusal = str(error)
held.close(stream)

kernel = ObjectCode.from_cubin(b"any image").get_kernel("busy_20ms")
config = LaunchConfig(grid=4, block=32)
timed = EventOptions(timing_enabled=True)
start = stream.record(options=timed)
launch(stream, config, kernel)
end = stream.record(options=timed)
end.sync()
builder = device.create_graph_builder().begin_building()
for _ in range(3):
    launch(builder, config, kernel)
node = GraphMemoryResource(device).allocate(1 << 20, stream=builder)
node.close(builder)
graph = builder.end_building().complete()
first = stream.record(options=timed)
graph.launch(stream)
last = stream.record(options=timed)
last.sync()
print(
    json.dumps(
        {
            "used": used,
            "total": next(iter(system.Device.get_all_devices())).memory_info.total >> 20,
            "refusal": refusal,
            "kernel_ms": end - start,
            "graph_ms": last - first,
        }
    ),
    flush=True,
)
