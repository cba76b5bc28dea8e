"""`python -m carpool`: the command line, where the `carpool` script is not on the path."""

from __future__ import annotations

from carpool.cli.main import main

main()
