"""The daemon's router: each message goes to who takes it, by the sender and receiver that its declaration names."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, cast

import pytest

from carpool.daemon import members as members_module
from carpool.daemon.authority import Authority
from carpool.daemon.driver import Driver
from carpool.daemon.joining import Joining
from carpool.daemon.members import Members
from carpool.daemon.orders import Orders
from carpool.daemon.peers import Connection
from carpool.daemon.queries import Queries
from carpool.daemon.router import Router
from carpool.daemon.runners import Runners
from carpool.daemon.stream import ChangeStream
from carpool.errors import PeerError
from carpool.wire import messages as m

DAEMON = Path(members_module.__file__).parent
SAMPLES: dict[str, Any] = {"int": 1, "bool": True, "str": "", "list[str]": ["x"], "dict[str, object]": {}}
PARTS = {m.JOB: "members", m.RUNNER: "runners"}


def sample(cls: type[Any]) -> m.Message:
    made: m.Message = cls(**{name: SAMPLES[field.type] for name, field in cls.__dataclass_fields__.items()})
    return made


class Taken:
    """Stands for a part of the daemon, and writes down what reached it."""

    def __init__(self) -> None:
        self.messages: list[m.Message] = []

    def take(self, peer: Connection, message: m.Message) -> None:
        self.messages.append(message)


def router(members: object, runners: object) -> Router:
    nobody = object()
    return Router(
        cast(Driver, nobody),
        authority=Authority({}),
        members=cast(Members, members),
        runners=cast(Runners, runners),
        joining=cast(Joining, nobody),
        queries=cast(Queries, nobody),
        orders=cast(Orders, nobody),
        stream=cast(ChangeStream, nobody),
        allowances=None,
    )


GREETINGS = {m.Attach, m.Enter, m.Call}  # they begin a conversation, and are refused from other versions
FROM_PARTS = [cls for cls, form in m.FORMS.items() if form.receiver == m.DAEMON and cls not in GREETINGS]


@pytest.mark.parametrize("cls", FROM_PARTS, ids=lambda cls: cls.__name__)
def test_a_message_goes_to_the_part_that_speaks_with_its_sender(cls: type[Any]) -> None:
    parts = {"members": Taken(), "runners": Taken()}
    message = sample(cls)
    router(parts["members"], parts["runners"]).on_message(cast(Connection, None), message)
    taken = {name: part.messages for name, part in parts.items() if part.messages}
    assert taken == {PARTS[m.FORMS[cls].sender]: [message]}


@pytest.mark.parametrize("cls", [cls for cls, form in m.FORMS.items() if form.receiver != m.DAEMON])
def test_a_message_that_is_not_for_the_daemon_is_an_error_of_the_sender(cls: type[Any]) -> None:
    with pytest.raises(PeerError, match=f"a daemon does not take {cls.__name__}"):
        router(Taken(), Taken()).on_message(cast(Connection, None), sample(cls))


@pytest.mark.parametrize("cls", FROM_PARTS, ids=lambda cls: cls.__name__)
def test_the_part_that_takes_a_message_has_a_case_for_it(cls: type[Any]) -> None:
    module = PARTS[m.FORMS[cls].sender]
    parsed = ast.parse((DAEMON / f"{module}.py").read_text())
    cases = {ast.unparse(node.cls) for node in ast.walk(parsed) if isinstance(node, ast.MatchClass)}
    assert f"m.{cls.__name__}" in cases, f"add a case for {cls.__name__} in daemon/{module}.py"
