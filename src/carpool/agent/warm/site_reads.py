"""Says which variables are read at the start of every Python: run with -S, it does the rest, and notes."""

import json
import sys

source, spare = sys.argv[1], sys.path[0]  # where carpool is, and where this file is
sys.path[:] = [source, *sys.path[1:]]

from carpool.agent.warm.reads import Reads  # noqa: E402 - found only now

del sys.path[0]
reads = Reads()
reads.begin()
import site  # noqa: E402 - it is what is watched

site.main()
reads.end()
print(json.dumps(reads.told()))
