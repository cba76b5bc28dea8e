"""Runs at the start of every Python in a carpool job, because `carpool run` puts this directory on PYTHONPATH.

It must be cheap, and must not disturb: it takes its directory off sys.path again, runs the sitecustomize it hid,
makes the name `carpool` importable (the job's own environment may not have it), and waits for `import torch`.
Where it cannot, it says so once, tells the daemon, and the program runs on as if alone; Pythons of any age understand
that part.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

# pythons: made from src/carpool/wire by make docs
_OLDEST, _NEWEST = (3, 11), (3, 14)
# end of what is made

# attach and detach: made from src/carpool/wire by make docs
_PROTOCOL = 5
_FRAME, _FRAME_BYTES = "<HHI4Q", 40


def _attach(job, pid, slot, holding, version, protocol):
    return 1, {"job": job, "pid": pid, "slot": slot, "holding": holding, "version": version, "protocol": protocol}


def _detach(reason):
    return 7, {"reason": reason}


# end of what is made


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


def _go_alone(why):
    """Say once, for this process and those it starts, that the program takes no turns; ps and explain show it too.

    On a GPU the library in the program takes turns at kernel launches instead, so nothing is said there."""
    if os.environ.get("CARPOOL_TURNS_AT_LAUNCHES"):
        return
    job = os.environ.get("CARPOOL_JOB")
    why = why.replace("\0", "").encode("ascii", "replace").decode("ascii")[:1000]
    said = "%s runs unmanaged: %s" % ("job " + job if job else "this Python", why)
    if os.environ.get("CARPOOL_ALONE") == said:
        return
    os.environ["CARPOOL_ALONE"] = said
    for act, what in ((_say, said), (_tell_daemon, why)):
        try:
            act(what)
        except Exception:  # noqa: BLE001 - stderr is closed, or no daemon is there: not the program's affair
            continue


def _say(what):
    sys.stderr.write("carpool: %s\n" % what)
    sys.stderr.flush()


def _tell_daemon(why):
    """Attach, and Detach at once: without a page there is nothing else to say."""
    import json
    import socket
    import struct

    job, version = os.environ["CARPOOL_JOB"], os.environ["CARPOOL_VERSION"]
    attach = _attach(job=job, pid=os.getpid(), slot=0, holding=False, version=version, protocol=_PROTOCOL)
    frames = b""
    for kind, fields in (attach, _detach(reason=why)):
        body = json.dumps(fields).encode()
        frames += struct.pack(_FRAME, kind, 0, len(body), 0, 0, 0, 0) + body
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.settimeout(2.0)
        peer.connect(os.environ["CARPOOL_SOCKET"])
        peer.sendall(frames, getattr(socket, "MSG_NOSIGNAL", 0))
        peer.recv(_FRAME_BYTES)
    finally:
        peer.close()


def _why_not():
    """Why programs of this Python take no turns; empty if they can: what wire/supported.py says of it (Z10)."""
    version = "Python %d.%d" % tuple(sys.version_info[:2])
    implementation = getattr(getattr(sys, "implementation", None), "name", "cpython")
    if sys.version_info[:2] < _OLDEST:
        return "%s is older than %d.%d" % ((version,) + _OLDEST)
    if implementation != "cpython":
        return "%s is another Python than CPython, which is what carpool knows" % implementation
    if os.environ.get("CARPOOL_ANY_VERSION"):
        return ""
    all_the_same = "CARPOOL_ANY_VERSION=1 tries it all the same"
    if sys.version_info[:2] > _NEWEST:
        return "%s is newer than %d.%d; %s" % ((version,) + _NEWEST + (all_the_same,))
    if "t" in sys.abiflags:
        return "%s is built without its lock (free-threaded); %s" % (version, all_the_same)
    return ""


def _start():
    sys.path[:] = [entry for entry in sys.path if not _is_here(entry)]
    _run_hidden()
    is_warm_parent = bool(os.environ.get("CARPOOL_WARM_PARENT"))
    if not (os.environ.get("CARPOOL_JOB") or os.environ.get("CARPOOL_JOIN") or is_warm_parent):
        return
    if sys.version_info[:2] >= _OLDEST:  # else its sources are nothing that this Python reads
        sys.meta_path.insert(0, _CarpoolFinder)
    why = _why_not()
    if why:
        if os.environ.get("CARPOOL_REPLAY"):  # from its beginning is not what was asked for
            _say("cannot go on from %s: %s" % (os.environ["CARPOOL_REPLAY"], why))
            os._exit(1)
        _go_alone(why)
        return
    from carpool.agent import boot

    (boot.remember if is_warm_parent else boot.watch)(_go_alone)


try:
    _start()
except Exception as error:  # noqa: BLE001 - a guest never crashes its host
    _go_alone("%s: %s" % (type(error).__name__, error))
