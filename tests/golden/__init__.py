"""Golden logs: what both schedulers answered to every event of many runs, compared with their answers now.

`make golden` records all of them again; `make test` replays them. See README.md beside this file.
"""
