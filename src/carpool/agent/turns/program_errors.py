"""Whose an exception is that came up inside the agent: the program's own signal handlers run there too."""

from __future__ import annotations


def is_programs(error: Exception) -> bool:
    """Whether a signal handler of the program raised it; such a one is given the frame that it interrupted."""
    trace, interrupted = error.__traceback__, None
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            given = value if type(value) is tuple else (value,)
            if interrupted is not None and any(each is interrupted for each in given):
                return True
        interrupted, trace = trace.tb_frame, trace.tb_next
    return False
