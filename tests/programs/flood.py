"""Sends the machine's daemon more than it can take in, in ways that each cost it something."""

import os
import sys
import threading
import time

from carpool.client import Client
from carpool.errors import CarpoolError


def ask() -> None:
    """The dearest question there is, again and again."""
    while True:
        try:
            Client().ps(ended=True)
        except CarpoolError:
            time.sleep(0.01)


threads, seconds = int(sys.argv[1]), float(sys.argv[2])
for _ in range(threads):
    threading.Thread(target=ask, daemon=True).start()
print("flooding", flush=True)
time.sleep(seconds)
os._exit(0)
