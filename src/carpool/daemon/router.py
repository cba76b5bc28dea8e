"""Receives every message and hands it on: processes of jobs take turns, runners report programs, clients call.

Knows which connection speaks for which job, and refuses other versions; decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from carpool import __version__, calls
from carpool.daemon import containers, moments, processes
from carpool.daemon.allowances import Allowances
from carpool.daemon.authority import Authority, Right
from carpool.daemon.driver import Driver
from carpool.daemon.joining import Joining
from carpool.daemon.members import Members
from carpool.daemon.orders import Orders
from carpool.daemon.peers import Connection
from carpool.daemon.queries import Queries
from carpool.daemon.records import VERBS as RECORDS
from carpool.daemon.records import Records
from carpool.daemon.runners import Runners
from carpool.daemon.stream import ChangeStream
from carpool.errors import CarpoolError, PeerError
from carpool.wire import messages as m

FLUSH_SECONDS_MAX = 20.0  # less than a client waits for an answer


class Router:
    def __init__(
        self,
        driver: Driver,
        *,
        members: Members,
        runners: Runners,
        joining: Joining,
        queries: Queries,
        orders: Orders,
        stream: ChangeStream,
        authority: Authority,
        allowances: Allowances | None,
    ) -> None:
        self._driver = driver
        self._members = members
        self._runners = runners
        self._joining = joining
        self._queries = queries
        self._orders = orders
        self._stream = stream
        self._authority = authority
        self._records = Records(driver)
        self._allowances = allowances  # of the users of a machine; None: it serves one user
        self._silent: dict[Connection, None] = {}  # they have said nothing yet; the oldest first
        self._leaving: deque[Connection] = deque()  # runners that hung up, in their order

    def connect(self) -> Connection:
        """Take a connection. Those that say nothing have half of the descriptors at most: the oldest has to go."""
        peer = Connection(self.on_message, self.on_lost, allowances=self._allowances)
        self._silent[peer] = None
        if len(self._silent) > max(1, processes.descriptor_limit() // 2):
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.close()
        return peer

    def on_message(self, peer: Connection, message: m.Message) -> None:
        self._silent.pop(peer, None)
        if not moments.DIE_AT:
            self._take(peer, message)
            return
        moments.pass_by(f"{moments.name_of(message)}.before")
        self._take(peer, message)
        moments.pass_by(f"{moments.name_of(message)}.after")

    def _take(self, peer: Connection, message: m.Message) -> None:
        form = m.FORMS[type(message)]
        if form.receiver != m.DAEMON:
            raise PeerError(f"a daemon does not take {type(message).__name__}")
        match message:
            case m.Attach():
                if self._speaks_this_version(peer, message.version, message.protocol):
                    self._members.attach(peer, message)
                else:
                    self._members.refused(peer, message)
            case m.Enter():
                if self._speaks_this_version(peer, message.version, message.protocol):
                    self._runners.take(peer, message)
            case m.Call():
                # A daemon of another version can be stopped, so that one of this version takes its place.
                if message.verb == "stop" or self._speaks_this_version(peer, message.version, message.protocol):
                    self._call(peer, message)
            case _ if form.sender == m.JOB:
                self._members.take(peer, message)
            case _:
                self._runners.take(peer, message)

    def on_lost(self, peer: Connection) -> None:
        """A connection is gone. Whoever took turns is dealt with at once. Of a crowd that hangs up together the
        others come one by one, and whoever else has something to say in between."""
        if peer.member is not None or (peer.job is None and not self._leaving):
            self._lose(peer)
            return
        self._leaving.append(peer)
        if len(self._leaving) == 1:
            self._lose_next()

    def _lose_next(self) -> None:
        try:
            self._lose(self._leaving[0])
        finally:
            self._leaving.popleft()
            if self._leaving:
                asyncio.get_running_loop().call_soon(self._lose_next)

    def _lose(self, peer: Connection) -> None:
        self._silent.pop(peer, None)
        self._stream.drop(peer)
        self._joining.drop(peer)
        self._driver.collect()
        live, member = peer.job, peer.member
        peer.job = peer.member = None
        if live is None or self._driver.jobs.get(live.id) is not live:
            return
        if member is not None:
            if member.peer is peer:
                self._members.drop(live, member)
        elif live.runner is peer:
            self._runners.drop(live)

    def _speaks_this_version(self, peer: Connection, version: str, protocol: int) -> bool:
        if protocol == m.PROTOCOL:
            return True
        how = "carpool daemon stop, then carpool daemon start"
        how = (
            "an admin restarts it: sudo carpool system restart"
            if self._allowances is not None
            else f"restart it: {how}"
        )
        reason = (
            f"the daemon is carpool {__version__} (protocol {m.PROTOCOL}), this is {version} (protocol {protocol});"
            f" {how}"
        )
        peer.send(m.Refuse(reason=reason))
        return False

    def _call(self, peer: Connection, message: m.Call) -> None:
        try:
            arguments = self._admit(message, peer)
            if message.verb == "changes":
                self._stream.add(peer, has_turns=bool(message.arguments.get("turns")))
                return
            if message.verb == "flush":
                self._flush(peer)
                return
            if message.verb == "join":
                self._joining.join(peer, arguments)
                return
            if message.verb in RECORDS:
                sight, is_admin = self._authority.past_sight(peer.uid), self._authority.is_admin(peer.uid)
                self._records.answer(peer, message.verb, arguments, sight, is_admin=is_admin)
                return
            answer = self._queries.answer(message.verb, arguments, uid=peer.uid)
            if answer is None:
                answer = self._orders.carry_out(message.verb, arguments, caller=peer.caller)
            shown = self._authority.shown(answer, peer.uid)
        except CarpoolError as error:
            peer.send(m.Reply(answer={}, error=self._authority.words(str(error), peer.uid), code=error.exit_code))
            return
        except OSError as error:
            where = f": {error.filename}" if error.filename is not None else ""
            peer.send(m.Reply(answer={}, error=f"{error.strerror or error}{where}", code=1))
            return
        peer.send(m.Reply(answer=calls.as_dict(shown), error="", code=0))

    def _admit(self, message: m.Call, peer: Connection) -> dict[str, object]:
        """What is asked, with the job that is meant by its id; RefusedError where this user may not ask that."""
        uid = peer.uid
        right = self._authority.check(message.verb, uid)
        if "job" not in message.arguments:
            return message.arguments
        wanted = str(message.arguments["job"])
        job = self._queries.find_live(wanted, uid=uid)
        if right is Right.OWNER:
            if job is None:
                raise self._queries.missing(wanted, uid=uid)
            self._authority.check_owner(message.verb, uid, self._driver.jobs[job])
            if self._driver.jobs[job].file.uid != uid:
                containers.check_call(message.verb, peer.process(), is_others=True)
        return message.arguments if job is None else {**message.arguments, "job": job}

    def _flush(self, peer: Connection) -> None:
        """Answer when the journal's thread has tried to write everything; nobody else waits for that."""
        loop = asyncio.get_running_loop()
        tried: asyncio.Future[str] = loop.create_future()

        def settle(trouble: str) -> None:
            if not tried.done():
                tried.set_result(trouble)

        def tell(trouble: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, trouble)

        def answer(_: object) -> None:
            late.cancel()
            trouble = tried.result()
            peer.send(m.Reply(answer={}, error=trouble, code=1 if trouble else 0))

        late = loop.call_later(
            FLUSH_SECONDS_MAX, settle, f"the journal was not written within {FLUSH_SECONDS_MAX:g} s: its disk hangs"
        )
        tried.add_done_callback(answer)
        self._driver.note_accounts()
        self._driver.journal.flush(tell)
