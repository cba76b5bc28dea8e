"""How well the code can be seen: who imports whom, who stores to which field, how far one decision runs.

`python -m carpool.testing.house` prints the figures with their bounds; `make house` also draws `docs/house.svg`.
"""
