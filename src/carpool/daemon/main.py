"""The daemon's life: one per user, started by `carpool daemon start` or by the first `carpool run`; or one for all
users of the machine, started by the system."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace

import msgspec

from carpool import __version__
from carpool.core.kernel.ids import DeviceId
from carpool.core.node.events import DeviceAdded, HistoryLoaded, NodeConfigured
from carpool.core.node.scheduler import Scheduler
from carpool.daemon import bells, hold_ups, people, processes, warm_parents
from carpool.daemon.allowances import Allowances
from carpool.daemon.authority import Authority
from carpool.daemon.config import DaemonConfig
from carpool.daemon.driver import Driver
from carpool.daemon.entrance import Entrance
from carpool.daemon.joining import Joining
from carpool.daemon.knocks import KnockSocket
from carpool.daemon.limits import Limits
from carpool.daemon.log_file import LogFile
from carpool.daemon.members import Members
from carpool.daemon.orders import Orders
from carpool.daemon.programs import Programs
from carpool.daemon.queries import Queries
from carpool.daemon.registry import Registry
from carpool.daemon.reload import InForce, Reload
from carpool.daemon.rights import keep_rights
from carpool.daemon.router import Router
from carpool.daemon.runners import Runners
from carpool.daemon.settings_file import MachineSettings, check_not_taken, group_id, load_settings
from carpool.daemon.starter import Starter
from carpool.daemon.stream import ChangeStream
from carpool.daemon.tenancy import Tenancy
from carpool.daemon.user_bounds import UserBounds
from carpool.devices.base import DeviceFacts
from carpool.devices.kinds import find_devices
from carpool.errors import CarpoolError, UsageError
from carpool.journal.writer import Journal
from carpool.policies import POLICIES, Guarded, find_policy
from carpool.wire.lock import BROUGHT_BACK, MACHINE, WAKE, make_sign
from carpool.wire.places import Places, machine_places, make_directory, own_places

log = logging.getLogger("carpool")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the daemon is put together from before it serves anybody."""

    driver: Driver
    starter: Starter
    in_force: InForce
    devices: list[DeviceFacts]
    policy: Guarded
    authority: Authority
    tenancy: Tenancy
    allowances: Allowances | None  # of the users of a machine; None: it serves one user
    reload: Reload
    limits: Limits
    stream: ChangeStream

    @classmethod
    def of(
        cls, driver: Driver, starter: Starter, in_force: InForce, *, devices: list[DeviceFacts], policy: Guarded
    ) -> Parts:
        places, reload = starter.places, make_reload(driver, starter, in_force)
        tenancy, access = Tenancy(driver, places, in_force), in_force.settings.access
        authority = Authority(driver.jobs, access, is_for_all=places.is_machine, tenants_of=tenancy.of)
        driver.words = authority.words
        reload.on_change += [lambda settings, by: authority.change(settings.access), lambda *_: people.forget()]
        stream = ChangeStream(driver.scheduler, driver.jobs, time.monotonic_ns, authority)
        driver.observers.add(stream)
        return cls(
            driver=driver,
            starter=starter,
            in_force=in_force,
            devices=devices,
            policy=policy,
            authority=authority,
            tenancy=tenancy,
            allowances=Allowances(time.monotonic_ns, in_force, asyncio.get_running_loop().call_later)
            if places.is_machine
            else None,
            reload=reload,
            limits=Limits(driver.jobs, places),
            stream=stream,
        )


def make_router(parts: Parts, stop: Callable[[], object]) -> tuple[Registry, Router]:
    """Who takes in what, and who is behind it."""
    driver, starter, authority = parts.driver, parts.starter, parts.authority
    programs = Programs(driver, parts.limits)
    starter.on_runner_gone = programs.end_if_dead
    registry = Registry(driver, starter, programs, authority, parts.tenancy, parts.allowances)
    joining = Joining(driver, programs, registry)
    registry.on_unentered = joining.wait_first
    members = Members(driver, starter.places, authority)
    members.on_first = joining.look
    queries = Queries(
        driver.scheduler,
        driver.jobs,
        driver.journal,
        authority=authority,
        tenancy=parts.tenancy,
        starter=starter,
        in_force=parts.in_force,
        policy=parts.policy,
        devices=parts.devices,
        observers=driver.observers,
        hear=driver.hear,
    )
    orders = Orders(
        driver,
        authority=authority,
        queries=queries,
        registry=registry,
        starter=starter,
        devices=parts.devices,
        reload=parts.reload,
        tenancy=parts.tenancy,
        stop=stop,
    )
    bells.take_all_down(starter.places.bells)
    router = Router(
        driver,
        members=members,
        runners=Runners(driver, starter, programs, registry, authority),
        joining=joining,
        queries=queries,
        orders=orders,
        stream=parts.stream,
        authority=authority,
        allowances=parts.allowances,
    )
    return registry, router


def tell_what_is_known(driver: Driver, in_force: InForce, devices: list[DeviceFacts]) -> None:
    """The core's first facts: its settings, its devices, and what programs needed before."""
    config = in_force.config
    driver.tell(NodeConfigured(policy=config.policy, settings=in_force.settings.node_settings(config)))
    for device in devices:
        driver.tell(DeviceAdded(device=DeviceId(device.id), capacity_bytes=device.capacity_bytes))
    for fingerprint, history in driver.journal.histories().items():
        driver.tell(HistoryLoaded(fingerprint=fingerprint, history=history))


def open_journal(places: Places, config: DaemonConfig) -> Journal:
    told = msgspec.json.encode(config).decode()
    size = config.journal_bytes_max
    return Journal(places.journal, version=__version__, config=told, bytes_max=size, report=log.warning)


def guard(reference: str) -> Guarded:
    """The policy of that reference; what is not carpool's own is also held to answer in time."""
    policy = Guarded(find_policy(reference, place="node"), log.error)
    if reference not in POLICIES:
        policy.watch_the_clock()
    return policy


def make_reload(driver: Driver, starter: Starter, in_force: InForce) -> Reload:
    """Who reads the settings again, when an admin says so or sends SIGHUP."""
    reload = Reload(starter.places, in_force, driver)
    reload.on_change += [starter.take_settings]
    if starter.places.is_machine:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.on_signal)
    return reload


def _bounds(driver: Driver, places: Places, in_force: InForce) -> list[Callable[[], object]]:
    """Looks at what users have; one who has a daemon of his own bounds himself."""
    return [UserBounds(driver, places, in_force).look] if places.is_machine else []


async def serve(places: Places, in_force: InForce, entrance: Entrance) -> bool:
    """Serve until told to stop; False if a bug ended it: the socket then stays, and runners start the next daemon."""
    # A runner that starts a daemon blocks every signal; programs would inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    stopped, broken = asyncio.Event(), asyncio.Event()
    running = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, stopped.set)
    config = in_force.config
    policy = guard(config.policy)
    devices = find_devices(config.device, lanes_max=policy.lanes_max)
    journal = open_journal(places, config)
    starter = Starter(places, devices, is_warm=config.warm)

    def give_up() -> None:
        broken.set()
        stopped.set()

    driver = Driver(Scheduler(policy), journal, starter, give_up)
    tell_what_is_known(driver, in_force, devices)
    parts = Parts.of(driver, starter, in_force, devices=devices, policy=policy)
    registry, router = make_router(parts, functools.partial(running.call_later, 0.05, stopped.set))
    registry.adopt(is_after_boot=entrance.is_after_boot)
    knocks = KnockSocket(places, driver.listen)
    bounds = _bounds(driver, places, in_force)
    entrance.on_lost, driver.on_note = give_up, [entrance.look, parts.limits.look, *bounds]
    entrance.on_restored = [registry.restore, knocks.restore]
    running.add_signal_handler(WAKE, entrance.look)
    await entrance.open(router.connect)
    log.info(
        "daemon.ready version=%s pid=%d policy=%s device=%s", __version__, os.getpid(), config.policy, config.device
    )
    await stopped.wait()
    running.remove_signal_handler(WAKE)
    signal.signal(WAKE, signal.SIG_IGN)
    if not broken.is_set():
        driver.note_accounts()
        parts.stream.close()
    journal.close()
    knocks.close()
    if broken.is_set():
        return False
    entrance.close(is_stopped=True)
    warm_parents.end_all(places.run)
    log.info("daemon.stopped pid=%d", os.getpid())
    return True


def _start_log(places: Places) -> LogFile | None:
    level = (os.environ.get("CARPOOL_LOG") or "INFO").upper()
    if level not in LOG_LEVELS:
        raise UsageError(f"CARPOOL_LOG={level} is not a level; there are {', '.join(LOG_LEVELS)}")
    logging.raiseExceptions = False  # a full disk must not stop the daemon
    log.setLevel(level)
    with contextlib.suppress(OSError):
        return LogFile(places.daemon_log)
    return None


def _run(serving: Coroutine[object, object, bool]) -> bool:
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.run(serving)
    return bool(uvloop.run(serving))


def _told(arguments: list[str]) -> tuple[Places, InForce]:
    """Where it serves, and with which settings."""
    if arguments[:1] == [MACHINE]:
        places = machine_places()
        settings = load_settings(places.settings)
        places = replace(places, group=group_id(settings.access.group))
    else:
        places = own_places()
        daemon = msgspec.json.decode(arguments[0], type=DaemonConfig) if arguments else DaemonConfig()
        check_not_taken(daemon)
        settings = MachineSettings(daemon=daemon)
    config = settings.config()
    config.check()
    return places, InForce(settings, config.with_host_memory())


def _say(error: CarpoolError) -> int:
    sys.stderr.write(f"carpool daemon: {error}\n")
    return error.exit_code


def main() -> int:
    """Entry of the daemon process."""
    try:
        return _main()
    finally:
        signal.signal(WAKE, signal.SIG_IGN)  # while the interpreter ends, so that the exit code says how it went


def _main() -> int:
    """Its arguments are the configuration, as JSON, and whether it is brought back; or that it is the machine's."""
    os.umask(0o077)
    signal.signal(WAKE, lambda *_: None)  # whoever cannot reach it yet waits; ignored, jobs would ignore it too
    try:
        places, in_force = _told(sys.argv[1:])
        config = in_force.config
        places = config.place_store(places)
        for directory in places.directories():
            make_directory(places, directory)
        if places.is_machine:
            keep_rights()
            hold_ups.begin()
        is_brought_back = sys.argv[2:] == [BROUGHT_BACK]
        sign = make_sign(run=places.run, state=places.state, is_brought_back=is_brought_back)
        entrance = Entrance(places, sign)
        entrance.take_locks()
        log_file = _start_log(places)
        config.save(places.config)
    except CarpoolError as error:
        return _say(error)
    except OSError as error:
        sys.stderr.write(f"carpool daemon: {error.strerror}: {error.filename}\n")
        return 1
    processes.step_back()
    processes.raise_descriptor_limit()
    try:
        return 0 if _run(serve(places, in_force, entrance)) else 1
    except CarpoolError as error:
        return _say(error)
    finally:
        if log_file is not None:
            log_file.close()


if __name__ == "__main__":
    sys.exit(main())
