"""A training program as a package: run with `python -m package` from the folder above."""
