"""nvitop: what its API and its table say of card 0, as JSON."""

import json
import subprocess
import sys

from nvitop import Device

card = Device(0)
table = subprocess.run([sys.executable, "-m", "nvitop", "--once"], capture_output=True, text=True, timeout=60)
shown = [line for line in table.stdout.splitlines() if "MiB" in line or "GiB /" in line]
print(
    json.dumps(
        {
            "name": card.name(),
            "total": card.memory_total() >> 20,
            "used": card.memory_used() >> 20,
            "free": card.memory_free() >> 20,
            "processes": {pid: process.gpu_memory() >> 20 for pid, process in card.processes().items()},
            "shown": shown[0] if shown else "",
            "errors": table.stderr,
        }
    ),
    flush=True,
)
