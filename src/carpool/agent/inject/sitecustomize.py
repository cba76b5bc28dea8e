"""Runs at the start of every Python in a carpool job, because `carpool run` puts this directory on PYTHONPATH.

It must be cheap, and must not disturb: it takes its directory off sys.path again, runs the sitecustomize it hid,
makes the name `carpool` importable (the job's own environment may not have it), and waits for `import torch`.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _is_here(entry):
    return os.path.abspath(entry or ".") == _HERE


def _run_hidden():
    """Run the sitecustomize that stands behind this one on the path, if there is one."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if not _is_here(entry)])
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class _CarpoolFinder:
    """Finds the carpool package that started this job, and nothing else."""

    package = os.path.dirname(os.path.dirname(_HERE))

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "carpool":
            return None
        from importlib.util import spec_from_file_location

        return spec_from_file_location(
            name, os.path.join(cls.package, "__init__.py"), submodule_search_locations=[cls.package]
        )


def _start():
    sys.path[:] = [entry for entry in sys.path if not _is_here(entry)]
    _run_hidden()
    if not os.environ.get("CARPOOL_JOB"):
        return
    if sys.version_info < (3, 11):
        if os.environ.setdefault("CARPOOL_OLD_PYTHON", str(os.getpid())) == str(os.getpid()):
            sys.stderr.write("carpool: Python %d.%d is older than 3.11: it runs unmanaged\n" % sys.version_info[:2])
        return
    sys.meta_path.insert(0, _CarpoolFinder)
    from carpool.agent import boot

    boot.watch()


try:
    _start()
except Exception as error:  # noqa: BLE001 - a guest never crashes its host
    sys.stderr.write("carpool: this Python runs unmanaged: %s: %s\n" % (type(error).__name__, error))
