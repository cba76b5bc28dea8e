"""Plain Python without torch: says hello on both streams and exits with the code it was given."""

import argparse
import sys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--code", type=int, default=0)
    args = parser.parse_args()
    print("hello from plain python", flush=True)
    print("and a word on stderr", file=sys.stderr, flush=True)
    print(f"torch loaded: {'torch' in sys.modules}", flush=True)
    sys.exit(args.code)


if __name__ == "__main__":
    main()
