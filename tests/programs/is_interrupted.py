"""Holds `--mib` MiB more and more until an allocation fails or a signal handler raises; says what came.

Its SIGUSR1 handler only counts: a wait for memory must not end because of it.
"""

import argparse
import signal
import sys
from types import FrameType


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=16)
    args = parser.parse_args()
    counted: list[int] = []

    def count(number: int, frame: FrameType | None) -> None:
        counted.append(number)

    signal.signal(signal.SIGUSR1, count)
    hoard: list[bytearray] = []
    print("ready", flush=True)
    for attempt in (1, 2):
        try:
            try:
                while True:
                    hoard.append(bytearray(args.mib << 20))
            except MemoryError:
                print(f"refused {attempt}", flush=True)
        except KeyboardInterrupt:
            print(f"interrupted {attempt} usr1={len(counted)}", flush=True)
    return 7


if __name__ == "__main__":
    sys.exit(main())
