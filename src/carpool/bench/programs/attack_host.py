"""Attempts to hold more than the cap on the CPU device, where the byte meter counts."""

import os

from attack_driver import NotHereError

PIECES = 24  # a block at a time, each of which would fit


def forked_reload(size):
    """Two forked children drop what they inherited and load as much of their own, while the parent keeps it."""
    if "meter" not in os.environ.get("LD_PRELOAD", ""):
        raise NotHereError("the byte meter is not built, or not loaded")
    kept = pieces(1, size)
    (told, tell), (until, go_on) = os.pipe(), os.pipe()
    children = [os.fork() or load_again(kept, tell, until, go_on) for _ in range(2)]
    os.close(tell)
    held = size
    for _ in children:
        held += size if os.read(told, 1) == b"1" else 0
    os.close(go_on)
    for child in children:
        os.waitpid(child, 0)
    return held


def pieces(value, size):
    return [bytearray([value]) * (size // PIECES) for _ in range(PIECES)]


def load_again(kept, tell, until, go_on):
    os.close(go_on)
    size = sum(map(len, kept))
    kept.clear()
    try:
        own = pieces(2, size)
    except MemoryError:
        own = []
    os.write(tell, b"1" if own else b"0")
    os.read(until, 1)  # until both have tried
    os._exit(0)
