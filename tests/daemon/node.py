"""A daemon without a process: its driver, its questions and orders, and jobs that outlived the last one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.events import DeviceAdded, JobAdopted, NodeConfigured
from carpool.core.node.model import JobSpec, Needs
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.daemon.authority import Authority
from carpool.daemon.config import DaemonConfig
from carpool.daemon.driver import Driver
from carpool.daemon.files import JobFile
from carpool.daemon.jobs import LiveJob
from carpool.daemon.limits import Limits
from carpool.daemon.orders import Orders
from carpool.daemon.people import Caller
from carpool.daemon.programs import Programs
from carpool.daemon.queries import Queries
from carpool.daemon.registry import Registry
from carpool.daemon.reload import InForce, Reload
from carpool.daemon.settings_file import MachineSettings
from carpool.daemon.starter import Starter
from carpool.daemon.tenancy import Tenancy
from carpool.devices.base import DeviceFacts
from carpool.devices.kinds import KINDS
from carpool.journal.writer import Journal
from carpool.policies import POLICIES, Guarded
from carpool.wire.places import Places

MIB = 1 << 20
CPU = DeviceId("cpu")
ME = Caller(uid=os.geteuid(), gid=os.getegid(), pid=0)


class Node:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.journal = Journal(directory / "journal.db", version="test", config="{}")
        places, scheduler = Places(run=directory, state=directory), Scheduler(POLICIES["fair"])
        self._starter = Starter(places, [])
        self.given_up: list[str] = []  # whether a bug ended this daemon
        self.driver = Driver(scheduler, self.journal, self._starter, lambda: self.given_up.append("now"))
        self.authority = Authority(self.driver.jobs)
        self.use_devices([DeviceFacts(id="cpu", kind=KINDS["cpu"], capacity_bytes=100 * MIB, title="cores")])
        self.driver.tell(NodeConfigured(policy="fair", settings=Settings()))
        self.driver.tell(DeviceAdded(device=CPU, capacity_bytes=100 * MIB))

    def use_devices(self, devices: list[DeviceFacts]) -> None:
        in_force = InForce(MachineSettings(), DaemonConfig())
        self.tenancy = Tenancy(self.driver, self._starter.places, in_force)
        self.queries = Queries(
            self.driver.scheduler,
            self.driver.jobs,
            self.journal,
            authority=self.authority,
            tenancy=self.tenancy,
            starter=self._starter,
            in_force=in_force,
            policy=Guarded(POLICIES["fair"], print),
            devices=devices,
            observers=self.driver.observers,
            hear=self.driver.hear,
        )
        limits = Limits(self.driver.jobs, self._starter.places)
        programs = Programs(self.driver, limits)
        self.registry = Registry(self.driver, self._starter, programs, self.authority, self.tenancy)
        self.orders = Orders(
            self.driver,
            authority=self.authority,
            queries=self.queries,
            registry=self.registry,
            starter=self._starter,
            devices=devices,
            reload=Reload(self._starter.places, in_force, self.driver),
            tenancy=self.tenancy,
            stop=lambda: None,
        )

    def adopt(self, name: str, *, live_bytes: int, needs: Needs | None, holding: bool = False) -> LiveJob:
        job, spec = JobId(name), JobSpec(name=name)
        (self._directory / name).mkdir()
        file = JobFile(job=name, number=1, spec=spec, argv=["python", "-c", "print(1)"], cwd="/")
        live = self.driver.jobs[job] = LiveJob(id=job, directory=self._directory / name, file=file)
        live.job_page.make(live.directory)
        self.driver.tell(
            JobAdopted(job=job, spec=spec, device=CPU, holding=holding, steps=1, live_bytes=live_bytes, needs=needs)
        )
        return live


def in_node(directory: Path, act: Callable[[Node], None]) -> None:
    async def live() -> None:
        node = Node(directory)
        act(node)
        node.journal.close()

    asyncio.run(live())
