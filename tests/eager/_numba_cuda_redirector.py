"""Stands in for the module of this name that numba-cuda has every Python import at its start, for 30 ms of a core.

It lets `numba.cuda` be found, which no program needs that runs with this directory in its PYTHONPATH; the test of
numba-cuda itself runs without it.
"""
