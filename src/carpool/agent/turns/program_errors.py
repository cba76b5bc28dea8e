"""Tells an exception of the program from one of ours: the program's signal handlers run inside our calls too."""

from __future__ import annotations


def is_raised_by_program(error: Exception) -> bool:
    """Whether a signal handler of the program raised it.

    Python gives a handler the frame that it interrupted. So one of the functions below the interrupted frame has that
    frame among its variables.
    """
    trace, interrupted = error.__traceback__, None
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            given = value if type(value) is tuple else (value,)
            if interrupted is not None and any(each is interrupted for each in given):
                return True
        interrupted, trace = trace.tb_frame, trace.tb_next
    return False
