"""Says whether stdin, stdout and stderr are terminals, then copies stdin to stdout byte for byte."""

import shutil
import sys


def main() -> None:
    streams = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    print(" ".join(f"{name}_tty={stream.isatty()}" for name, stream in streams.items()), flush=True)
    shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
