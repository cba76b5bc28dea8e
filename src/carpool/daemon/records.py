"""What people ask of the journal's file: usage and ended jobs, answered by threads of their own.

Rules
  J17  The loop never waits for the file, and a question reads it by a connection of its own, so that the journal's
       thread never waits either. ASKED_MAX are read at once, ASKED_EACH of them of one user who is no admin; beyond
       that people are told to ask again. What happened up to half a second before the question is in the answer, and
       the answer says up to when all of it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping

from carpool import calls
from carpool.daemon.driver import Driver
from carpool.daemon.peers import Connection
from carpool.daemon.translate import read_as
from carpool.errors import CarpoolError, RefusedError
from carpool.journal import questions
from carpool.journal.questions import EVERYTHING, Sight
from carpool.wire import messages as m

VERBS = frozenset({"usage", "history"})
ASKED_MAX = 4  # each may hold the interpreter for milliseconds
ASKED_EACH = 2  # of one user, so that no user is in the way of all others
WAIT_SECONDS = 20.0  # less than a client waits for an answer
Said = tuple[dict[str, object], str, int]  # the answer, or what is wrong and the exit code


class Records:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._asked: Counter[int] = Counter()  # what is being read, by who asked

    def answer(
        self,
        peer: Connection,
        verb: str,
        arguments: Mapping[str, object],
        sight: Sight = EVERYTHING,
        *,
        is_admin: bool = False,
    ) -> None:
        """Send the answer when it was read; a CarpoolError if nothing can be asked like that."""
        read = self._reading(verb, arguments, sight)
        uid = peer.uid
        self._check(uid, is_admin=is_admin)
        self._asked[uid] += 1
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Said] = loop.create_future()

        def settle(said: Said) -> None:
            if not done.done():
                done.set_result(said)

        def finish(said: Said) -> None:
            self._asked -= Counter((uid,))
            settle(said)

        def work(trouble: str) -> None:
            said = _answer_of(read, trouble)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(finish, said)

        def begin(trouble: str) -> None:  # in the journal's thread, once all is written
            threading.Thread(target=work, args=(trouble,), name="records", daemon=True).start()

        def reply(_: object) -> None:
            late.cancel()
            answer, error, code = done.result()
            peer.send(m.Reply(answer=answer, error=error, code=code))

        hangs = f"the journal was not read within {WAIT_SECONDS:g} s: its disk hangs"
        late = loop.call_later(WAIT_SECONDS, settle, ({}, hangs, 1))
        done.add_done_callback(reply)
        self._driver.book()
        self._driver.journal.flush(begin)

    def _check(self, uid: int, *, is_admin: bool) -> None:
        """RefusedError if too many questions are being answered, or too many of this user."""
        asked = self._asked.total()
        if asked >= ASKED_MAX:
            raise RefusedError(f"{asked} questions about usage and history are being answered; ask again")
        if self._asked[uid] >= ASKED_EACH and not is_admin:
            raise RefusedError(
                f"{self._asked[uid]} of your questions about usage and history are being answered, and a user has"
                f" {ASKED_EACH} at once; ask again when one of them is answered"
            )

    def _reading(self, verb: str, arguments: Mapping[str, object], sight: Sight) -> Callable[[], calls.Answer]:
        path = self._driver.journal.path
        if verb == "usage":
            of_usage = read_as(calls.UsageAsked, arguments, what="the question about usage")
            return lambda: questions.usage(path, of_usage, sight=sight)
        of_history = read_as(calls.HistoryAsked, arguments, what="the question about ended jobs")
        return lambda: questions.history(path, of_history, sight=sight)


def _answer_of(read: Callable[[], calls.Answer], trouble: str) -> Said:
    """What was read, and with it why the newest may be missing."""
    try:
        return {**calls.as_dict(read()), "trouble": trouble}, "", 0
    except CarpoolError as error:
        return {}, str(error), error.exit_code
    except OSError as error:
        return {}, f"the journal cannot be read: {error.strerror or error}", 1
