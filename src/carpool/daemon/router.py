"""Receives every message and hands it on: processes of jobs take turns, runners report programs, clients call.

Knows which connection speaks for which job, and refuses other versions; decides nothing.
"""

from __future__ import annotations

from carpool import __version__, calls
from carpool.daemon.driver import Driver
from carpool.daemon.members import Members
from carpool.daemon.orders import Orders
from carpool.daemon.peers import Connection
from carpool.daemon.queries import Queries
from carpool.daemon.runners import Runners
from carpool.daemon.stream import ChangeStream
from carpool.errors import CarpoolError, PeerError
from carpool.wire import messages as m


class Router:
    def __init__(
        self,
        driver: Driver,
        *,
        members: Members,
        runners: Runners,
        queries: Queries,
        orders: Orders,
        stream: ChangeStream,
    ) -> None:
        self._driver = driver
        self._members = members
        self._runners = runners
        self._queries = queries
        self._orders = orders
        self._stream = stream

    def connect(self) -> Connection:
        return Connection(self.on_message, self.on_lost)

    def on_message(self, peer: Connection, message: m.Message) -> None:
        form = m.FORMS[type(message)]
        if form.receiver != m.DAEMON:
            raise PeerError(f"a daemon does not take {type(message).__name__}")
        match message:
            case m.Attach():
                if self._speaks_this_version(peer, message.version, message.protocol):
                    self._members.attach(peer, message)
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
        self._stream.drop(peer)
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
        if protocol == m.PROTOCOL and version == __version__:
            return True
        reason = (
            f"the daemon is carpool {__version__} (protocol {m.PROTOCOL}), this is {version} (protocol {protocol});"
            " restart it: carpool daemon stop, then carpool daemon start"
        )
        peer.send(m.Refuse(reason=reason))
        return False

    def _call(self, peer: Connection, message: m.Call) -> None:
        try:
            if message.verb == "changes":
                self._stream.add(peer, has_turns=bool(message.arguments.get("turns")))
                return
            answer = self._queries.answer(message.verb, message.arguments)
            if answer is None:
                answer = self._orders.carry_out(message.verb, message.arguments)
        except CarpoolError as error:
            peer.send(m.Reply(answer={}, error=str(error), code=error.exit_code))
            return
        except OSError as error:
            peer.send(m.Reply(answer={}, error=f"{error.strerror}: {error.filename}", code=1))
            return
        peer.send(m.Reply(answer=calls.as_dict(answer), error="", code=0))
