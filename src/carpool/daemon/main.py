"""The daemon's life: one per user, started by `carpool daemon start` or by the first `carpool run`."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import logging
import logging.handlers
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine

import msgspec

from carpool import __version__
from carpool.core.kernel.ids import DeviceId
from carpool.core.node.events import DeviceAdded, HistoryLoaded, NodeConfigured
from carpool.core.node.scheduler import Scheduler
from carpool.daemon import processes
from carpool.daemon.config import DaemonConfig
from carpool.daemon.driver import Driver
from carpool.daemon.knocks import KnockSocket
from carpool.daemon.members import Members
from carpool.daemon.orders import Orders
from carpool.daemon.programs import Programs
from carpool.daemon.queries import Queries
from carpool.daemon.registry import Registry
from carpool.daemon.router import Router
from carpool.daemon.runners import Runners
from carpool.daemon.starter import Starter
from carpool.daemon.stream import ChangeStream
from carpool.devices.base import DeviceFacts
from carpool.devices.kinds import find_devices
from carpool.errors import CarpoolError, PeerError, UsageError
from carpool.journal.writer import Journal
from carpool.policies import Guarded, find_policy
from carpool.wire.places import Places, find_places, make_private

log = logging.getLogger("carpool")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def take_lock(places: Places) -> int:
    """The lock a daemon holds all its life; PeerError if another one has it."""
    fd = os.open(places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise PeerError(f"a daemon is already running (it holds {places.lock})") from error
    return fd


def make_router(
    driver: Driver,
    starter: Starter,
    config: DaemonConfig,
    devices: list[DeviceFacts],
    *,
    stream: ChangeStream,
    stop: Callable[[], object],
) -> tuple[Registry, Router]:
    """Who takes in what, and who is behind it."""
    programs = Programs(driver)
    starter.on_runner_gone = programs.end_if_dead
    registry = Registry(driver, starter, programs)
    queries = Queries(
        driver.scheduler,
        driver.jobs,
        driver.journal,
        starter=starter,
        config=config,
        devices=devices,
        observers=driver.observers,
        hear=driver.hear,
    )
    orders = Orders(driver, queries=queries, registry=registry, starter=starter, devices=devices, stop=stop)
    router = Router(
        driver,
        members=Members(driver, starter.places),
        runners=Runners(driver, starter, programs, registry),
        queries=queries,
        orders=orders,
        stream=stream,
    )
    return registry, router


async def serve(places: Places, config: DaemonConfig) -> bool:
    """Serve until told to stop; False if a bug ended it: the socket then stays, and runners start the next daemon."""
    # A runner that starts a daemon blocks every signal; programs would inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    stopped, broken = asyncio.Event(), asyncio.Event()
    running = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, stopped.set)
    policy = Guarded(find_policy(config.policy, place="node"), log.error)
    devices = find_devices(config.device, lanes_max=policy.lanes_max)
    journal = Journal(places.journal, version=__version__, config=msgspec.json.encode(config).decode())
    starter = Starter(places, devices)

    def give_up() -> None:
        broken.set()
        stopped.set()

    driver = Driver(Scheduler(policy), journal, starter, give_up)
    driver.tell(NodeConfigured(policy=config.policy, settings=config.settings()))
    for device in devices:
        driver.tell(DeviceAdded(device=DeviceId(device.id), capacity_bytes=device.capacity_bytes))
    for fingerprint, history in journal.histories().items():
        driver.tell(HistoryLoaded(fingerprint=fingerprint, history=history))
    stream = ChangeStream(driver.scheduler, driver.jobs, time.monotonic_ns)
    driver.observers.add(stream)
    registry, router = make_router(
        driver, starter, config, devices, stream=stream, stop=lambda: running.call_later(0.05, stopped.set)
    )
    registry.adopt()
    knocks = KnockSocket(places.knock, driver.listen)
    # We hold the lock, so a socket that is still there is a dead daemon's.
    places.socket.unlink(missing_ok=True)
    server = await running.create_unix_server(router.connect, path=str(places.socket))
    log.info(
        "daemon.ready version=%s pid=%d policy=%s device=%s", __version__, os.getpid(), config.policy, config.device
    )
    await stopped.wait()
    if not broken.is_set():
        driver.note_accounts()
        stream.close()
    journal.close()
    knocks.close()
    if broken.is_set():
        return False
    server.close()
    places.socket.unlink(missing_ok=True)
    log.info("daemon.stopped pid=%d", os.getpid())
    return True


def _start_log(places: Places) -> None:
    level = (os.environ.get("CARPOOL_LOG") or "INFO").upper()
    if level not in LOG_LEVELS:
        raise UsageError(f"CARPOOL_LOG={level} is not a level; there are {', '.join(LOG_LEVELS)}")
    logging.raiseExceptions = False  # a full disk must not stop the daemon
    with contextlib.suppress(OSError):
        handler = logging.handlers.RotatingFileHandler(places.daemon_log, maxBytes=5 << 20, backupCount=1)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
    log.setLevel(level)


def _run(serving: Coroutine[object, object, bool]) -> bool:
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.run(serving)
    return bool(uvloop.run(serving))


def main() -> int:
    """Entry of the daemon process; the configuration is its one argument, as JSON."""
    os.umask(0o077)
    try:
        places = find_places()
        config = msgspec.json.decode(sys.argv[1], type=DaemonConfig) if len(sys.argv) > 1 else DaemonConfig()
        config.check()
        config = config.with_host_memory()
        places = config.place_store(places)
        for directory in (places.run, places.state, places.jobs, places.bells, places.parked):
            make_private(directory)
        lock = take_lock(places)
        _start_log(places)
        config.save(places.config)
    except CarpoolError as error:
        sys.stderr.write(f"carpool daemon: {error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"carpool daemon: {error.strerror}: {error.filename}\n")
        return 1
    processes.step_back()
    try:
        return 0 if _run(serve(places, config)) else 1
    finally:
        os.close(lock)


if __name__ == "__main__":
    sys.exit(main())
