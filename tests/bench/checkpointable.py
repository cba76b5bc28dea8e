"""What `--checkpointable` costs where data workers load images: python -m tests.bench.checkpointable [PAIRS]

Processor time of the program and its workers, in pairs of runs with and without, first the one, then the other. It is
no test: on a busy machine one pair differs by up to a tenth, and only many say something.
"""

from __future__ import annotations

import statistics
import sys

from tests.e2e.node import Node

PROGRAM = "images.py"


def seconds(node: Node, *options: str) -> tuple[float, bytes]:
    """Of one run, and what it printed besides."""
    ended = node.run(PROGRAM, options=options).wait(seconds=600)
    assert ended.code == 0, ended.err
    lines, _, figure = ended.out.rpartition(b"seconds=")
    return float(figure), lines


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    if count < 2:
        sys.exit("it takes at least 2 pairs to say how far they differ")
    node, pairs, outputs = Node(), list[tuple[float, float]](), set[bytes]()
    try:
        node.start()
        for number in range(count):
            found = {}
            for options in ([], ["--checkpointable"])[:: 1 if number % 2 else -1]:
                found[len(options)], lines = seconds(node, *options)
                outputs.add(lines)
            pairs.append((found[0], found[1]))
            print(f"without {found[0]:.2f} s, with {found[1]:.2f} s: {found[1] / found[0] - 1:+.1%}", flush=True)
    finally:
        node.close()
    ratios = [added / plain - 1 for plain, added in pairs]
    whole = sum(added for _, added in pairs) / sum(plain for plain, _ in pairs) - 1
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    print(
        f"{count} pairs: median {statistics.median(ratios):+.1%}, mean {statistics.mean(ratios):+.1%} ± {error:.1%},"
    )
    print(f"all together {whole:+.1%}; outputs are {'the same' if len(outputs) == 1 else 'DIFFERENT'}")
    sys.exit(len(outputs) > 1)


if __name__ == "__main__":
    main()
