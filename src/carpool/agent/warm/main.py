"""What the warm parent's interpreter runs. A program of it runs from this outermost frame, the only one below it."""

import sys

del sys.path[0]  # this directory, in place of which a program has its own

from carpool.agent.warm.parent import serve  # noqa: E402 - found only now

program = serve()
if program is not None:
    try:
        if program.module:
            import runpy

            runpy._run_module_as_main(program.module)  # type: ignore[attr-defined]
        else:
            exec(compile(program.source, program.filename, "exec", dont_inherit=True), program.namespace)
    except SystemExit:
        raise
    except BaseException as error:
        program.report(error)
        raise
