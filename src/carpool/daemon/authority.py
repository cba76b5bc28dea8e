"""Who may do what: one table for all that can be asked of a daemon, and what people see of others' jobs.

Whom a daemon deals with is known from the kernel alone: a connection's uid (people.py). A user's own daemon serves
nobody else, and so its user may do everything. The machine's daemon serves all: its admins are root, the account that
it runs under, and those whom carpool.toml names. docs/security.md is the trust model.

Rules
  I30  Whatever is asked of the daemon has a row in VERBS; it is looked up before anything else is done with what was
       asked. What has no row does not exist.
  I31  An order about a job is for its owner, the user whose uid the job has, and for admins.
  I32  Of another's job people see what explains their own waits: whose it is, its name, its state, its device, bytes,
       times and reasons. They do not see its command line, its log, or what says which files its program has.
  I33  A process counts for a job only if it has the uid of the job: to attach to it, to be its runner, to be its
       program, or to be one of those that are counted or ended with it.
  I34  Who gave an order stands in the fact that the core is told: so it is in the journal, in the account of the job,
       and in what `explain` says of it, also after the daemon was started anew.
  I35  In private mode nothing names another user, or a job by what its user called it: not an answer, not a stream,
       and not the sentence in which somebody else's job is why one waits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

from msgspec.structs import replace

from carpool import calls
from carpool.core.kernel.ids import JobId
from carpool.daemon.jobs import LiveJob
from carpool.daemon.people import ROOT, User, user_of
from carpool.daemon.settings_file import Access
from carpool.errors import RefusedError, UsageError
from carpool.journal import questions

HIDDEN = "another user"  # in place of a name that is not to be known


class Right(StrEnum):
    """Who may ask for a thing."""

    ANYONE = "anyone"  # who can reach the daemon
    OWNER = "owner"  # of the job that is named, and admins
    ADMIN = "admin"


VERBS: Mapping[str, Right] = {
    "status": Right.ANYONE,
    "ps": Right.ANYONE,
    "job": Right.ANYONE,
    "changes": Right.ANYONE,
    "tenants": Right.ANYONE,
    "usage": Right.ANYONE,
    "history": Right.ANYONE,
    "submit": Right.ANYONE,
    "join": Right.ANYONE,
    "cancel": Right.OWNER,
    "suspend": Right.OWNER,
    "resume": Right.OWNER,
    "resize": Right.OWNER,
    "migrate": Right.OWNER,
    "checkpoint": Right.OWNER,
    "tenant": Right.ADMIN,
    "reload": Right.ADMIN,
    "flush": Right.ADMIN,
    "stop": Right.ADMIN,
}
WHAT = {  # what an admin would have done, as a sentence says it
    "tenant": "change what a tenant may have",
    "reload": "have the settings read again",
    "flush": "have the journal written",
    "stop": "stop the daemon",
}


class Authority:
    """Who may do what here. Admins and private mode change while the daemon runs (`change`)."""

    def __init__(
        self,
        jobs: Mapping[JobId, LiveJob],
        access: Access | None = None,
        *,
        is_for_all: bool = False,
        tenants_of: Callable[[User], Collection[str]] = lambda user: [user.name],
    ) -> None:
        self._jobs = jobs
        self._own_uid = os.geteuid()
        self._tenants_of = tenants_of
        self.is_for_all = is_for_all  # whether it serves all users of the machine, or one
        self.change(access or Access())

    def change(self, access: Access) -> None:
        """From now on these are the admins, and names are hidden or not."""
        self._admins = access.admins
        self.is_private = access.private and self.is_for_all

    # --- who may ---------------------------------------------------------------------------------------------

    def is_admin(self, uid: int) -> bool:
        return uid in (ROOT, self._own_uid) or (self.is_for_all and user_of(uid).is_one_of(self._admins))

    def sees_names(self, uid: int) -> bool:
        """Whether this user is told what others call themselves and their jobs."""
        return not self.is_private or self.is_admin(uid)

    def check(self, verb: str, uid: int) -> Right:
        """Whose right it takes to ask this (I30); RefusedError where it takes an admin and this user is none."""
        right = VERBS.get(verb)
        if right is None:
            raise UsageError(f"the daemon knows no '{verb}'")
        if right is Right.ADMIN and not self.is_admin(uid):
            raise RefusedError(
                f"only an admin may {WHAT[verb]}, and {user_of(uid).name} is none; admins are root and whom [access]"
                " admins in carpool.toml names"
            )
        return right

    def check_owner(self, verb: str, uid: int, live: LiveJob) -> None:
        """RefusedError for an order about another's job (I31)."""
        if uid != live.file.uid and not self.is_admin(uid):
            whose = HIDDEN if self.is_private else f"user {live.file.spec.user}"
            raise RefusedError(f"job {live.id} is of {whose}: only its owner and admins may {verb} it")

    def check_process(self, uid: int, live: LiveJob) -> None:
        """RefusedError for a process that would count for another user's job (I33)."""
        if uid != live.file.uid:
            raise RefusedError(f"job {live.id} is another user's; processes of user {uid} are no part of it")

    def by(self, uid: int) -> str:
        """The name under which an order of this user is kept (I34). Where only one user is served nobody asks."""
        return user_of(uid).name if self.is_for_all else ""

    # --- what others see -------------------------------------------------------------------------------------

    def shown(self, answer: calls.Answer, uid: int) -> calls.Answer:
        """An answer as this user may see it (I32, I35)."""
        if not self.is_for_all or self.is_admin(uid):
            return answer
        sight = Sight(uid, self.is_private, self._hidden_from(uid))
        match answer:
            case calls.Job():
                return sight.job(answer)
            case calls.JobAnswer():
                is_own = answer.job.uid == uid
                return replace(answer, job=sight.job(answer.job), log=answer.log if is_own else "")
            case calls.Node():
                return replace(answer, jobs=[sight.job(job) for job in answer.jobs])
            case calls.Status():
                own = self._tenants_of(user_of(uid)) if self.is_private else answer.tenant_weights_milli
                weights = {name: each for name, each in answer.tenant_weights_milli.items() if name in own}
                return replace(answer, warm_parents=[], tenant_weights_milli=weights)
            case calls.Tenants() if self.is_private:
                own = self._tenants_of(user_of(uid))
                return replace(answer, tenants=[each for each in answer.tenants if each["name"] in own])
            case calls.Changes():
                told = [replace(each, reason=sight.words(each.reason)) for each in answer.changes]
                return replace(answer, changes=told)
            case _:  # answers to orders: whoever may give them may see them
                return answer

    def words(self, sentence: str, uid: int) -> str:
        """A sentence as this user may hear it: why he waits, or why he was refused (I35)."""
        if self.sees_names(uid):
            return sentence
        return Sight(uid, self.is_private, self._hidden_from(uid)).words(sentence)

    def past_sight(self, uid: int) -> questions.Sight:
        """Whose names of the past this user sees."""
        user = user_of(uid)
        tenants = frozenset(self._tenants_of(user))
        return questions.Sight(sees_all=self.sees_names(uid), user=user.name, tenants=tenants)

    def _hidden_from(self, uid: int) -> set[str]:
        """The names of others that a sentence may have."""
        if not self.is_private:
            return set()
        files = [live.file for live in self._jobs.values()]
        own = {name for file in files if file.uid == uid for name in (file.spec.user, file.spec.tenant)}
        others = {name for file in files if file.uid != uid for name in (file.spec.user, file.spec.tenant)}
        user = user_of(uid)
        return others - own - {user.name, "", *self._tenants_of(user)}


class Sight:
    """What one user, who is no admin, sees."""

    def __init__(self, uid: int, is_private: bool, hidden: Collection[str]) -> None:
        self._uid = uid
        self._is_private = is_private
        names = "|".join(map(re.escape, sorted(hidden)))
        self._names = re.compile(rf"(?<![\w.-])(?:{names})(?![\w.-])") if names else None

    def words(self, sentence: str) -> str:
        """A sentence without the names of others."""
        return self._names.sub(HIDDEN, sentence) if self._names is not None else sentence

    def job(self, job: calls.Job) -> calls.Job:
        if job.uid == self._uid:
            return replace(job, reason=self.words(job.reason)) if self._is_private else job
        shown = replace(job, argv=[], unwritable="", limit_loss="", start="")
        if not self._is_private:
            return shown
        return replace(
            shown,
            name="",
            user=HIDDEN,
            uid=None,
            tenant=self.words(job.tenant),
            pids=[],
            processes=[],
            orphans=[],
            container="",
            orders=[],
            reason=self.words(job.reason),
        )
