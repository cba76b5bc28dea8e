"""Who is where: the jobs on each node, and how room is made for one more.

Room is made in two ways: loans leave; or owned jobs smaller than the newcomer leave too, and get other cards
afterwards. Whether enough have left is asked of the inventory, so that CPU, host memory, bytes of shared cards and
labels count as card time does. Nothing is changed unless every member finds a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from carpool.core.cluster.inventory import Inventory
from carpool.core.cluster.model import ClusterJob
from carpool.core.cluster.placement.requests import Placement, Request

Rank = Callable[[ClusterJob], tuple[int, ...]]  # the lowest is parked first
Choice = tuple[int, list[ClusterJob]]  # on which node, who leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A place for every member, and who had to leave for it."""

    places: tuple[Placement, ...]
    left: tuple[ClusterJob, ...] = ()


class Occupancy:
    """Jobs on nodes. `put` and `lift` keep the inventory right."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.on_node: list[dict[ClusterJob, int]] = [{} for _ in range(inventory.nodes)]  # with their card time there
        self.made_room: set[ClusterJob] = set()  # those for whom room was made in this decision

    def add_node(self) -> None:
        self.on_node.append({})

    def put(self, job: ClusterJob, places: tuple[Placement, ...]) -> None:
        """Enter a job whose places the inventory already holds."""
        job.places = places
        for member, place in zip(job.members, places, strict=True):
            jobs = self.on_node[place.node]
            jobs[job] = jobs.get(job, 0) + member.total_milli

    def lift(self, job: ClusterJob) -> None:
        """Take a job off its cards; `job.places` still says where it was."""
        for member, place in zip(job.members, job.places, strict=True):
            self.inventory.give(member, place)
            self.on_node[place.node].pop(job, None)

    def find(self, job: ClusterJob) -> Room | None:
        """Free places for all members, taken in the inventory; None if there are not enough."""
        if job.size_milli > self.inventory.free_milli:
            return None
        places: list[Placement] = []
        for member in job.members:
            place = self.inventory.place(member)
            if place is None:
                self._give_all(job, places)
                return None
            places.append(place)
        return Room(places=tuple(places))

    def would_fit(self, job: ClusterJob) -> bool:
        """Whether there are free places for all members. Changes nothing, and draws no lots."""
        places: list[Placement] = []
        for member in job.members:
            fitting = (node for node in range(self.inventory.nodes) if self.inventory.fits_on(member, node))
            place = next((self.inventory.place_on(member, node) for node in fitting), None)
            if place is None:
                break
            places.append(place)
        self._give_all(job, places)
        return len(places) == len(job.members)

    def make_room(
        self, job: ClusterJob, rank: Rank, *, loans: Sequence[ClusterJob], moves_smaller: bool
    ) -> Room | None:
        """Places for all members after loans, and perhaps smaller owned jobs, left; None changes nothing."""
        loans = [loan for loan in loans if self._gives_way(loan, job)]
        lifted: list[ClusterJob] = []
        places: list[Placement] = []
        for member in job.members:
            place = self.inventory.place(member)
            if place is None:
                still = [loan for loan in loans if loan not in lifted]
                by_size = self._by_size(job, member, rank, still) if moves_smaller else None
                place = self._clear(member, by_size or self._by_loans(job, member, rank, still), lifted)
            if place is None:
                self._give_all(job, places)
                for other in lifted:
                    self._restore(other)
                return None
            places.append(place)
        return Room(places=tuple(places), left=tuple(other for other in reversed(lifted) if not self._retake(other)))

    def find_without(self, job: ClusterJob, others: Sequence[ClusterJob]) -> Room | None:
        """Places for all members once these jobs have left, which are lifted; None changes nothing."""
        for other in others:
            self.lift(other)
        room = self.find(job)
        if room is None:
            for other in others:
                self._restore(other)
        return room

    def _gives_way(self, other: ClusterJob, job: ClusterJob) -> bool:
        """O6: who made room for itself in this decision gives way in it only to a larger job."""
        return other not in self.made_room or other.size_milli < job.size_milli

    def _by_loans(
        self, job: ClusterJob, member: Request, rank: Rank, loans: Iterable[ClusterJob]
    ) -> Iterator[Choice]:
        """For each node with loans enough: who leaves there; best where the most protected of them is least so."""
        nodes = {place.node: None for loan in loans for place in loan.places}
        choices: list[tuple[tuple[int, ...], int, list[ClusterJob]]] = []
        for node in nodes:
            jobs = [other for other in self.on_node[node] if not other.is_owned and self._gives_way(other, job)]
            leaving = self._enough(member, node, sorted(jobs, key=rank))
            if leaving:
                moved_milli = sum(other.size_milli for other in leaving)
                choices.append(((*rank(leaving[-1]), moved_milli), node, leaving))
        for _, node, leaving in sorted(choices, key=lambda choice: choice[:2]):
            yield node, leaving

    def _by_size(self, job: ClusterJob, member: Request, rank: Rank, loans: Iterable[ClusterJob]) -> Iterator[Choice]:
        """For each node with enough loans and smaller jobs: who leaves; first where least of owned jobs must move.

        A node without loans needs the fewer moves the more of it is free, so of those only the first that will do is
        compared with the nodes that have loans; the others come after it.
        """
        lent = dict.fromkeys(place.node for loan in loans for place in loan.places)
        first = [(self._to_move(job, member, node), node) for node in lent]
        empty_first = (node for node in self.inventory.emptiest(member) if node not in lent)
        for node in empty_first:
            moved_milli = self._to_move(job, member, node)
            if moved_milli is not None:
                first.append((moved_milli, node))
                break
        for node in chain((node for moved, node in sorted(_known(first))), empty_first):
            may_leave = [
                other
                for other in self.on_node[node]
                if other.size_milli < job.size_milli or (not other.is_owned and self._gives_way(other, job))
            ]
            leaving = self._enough(member, node, sorted(may_leave, key=rank))
            if leaving:
                yield node, leaving

    def _to_move(self, job: ClusterJob, member: Request, node: int) -> int | None:
        """How much of the owned jobs must move for the member to fit on the node; None if it would not even then."""
        size_milli = job.size_milli
        missing_milli = member.total_milli - self.inventory.usable_milli(member, node)
        smaller_milli = 0
        for other, milli in self.on_node[node].items():
            if not other.is_owned:
                missing_milli -= milli
            elif other.size_milli < size_milli:
                smaller_milli += milli
        return missing_milli if missing_milli <= smaller_milli else None

    def _clear(self, member: Request, choices: Iterator[Choice], lifted: list[ClusterJob]) -> Placement | None:
        """Lift jobs from the first node where that is enough, and take the member's place there."""
        for node, leaving in choices:
            for other in leaving:
                self.lift(other)
            place = self.inventory.place_on(member, node)
            if place is not None:
                lifted.extend(leaving)
                return place
            for other in leaving:
                self._restore(other)
        return None

    def _enough(self, member: Request, node: int, jobs: list[ClusterJob]) -> list[ClusterJob] | None:
        """As many of the jobs, in their order, as must leave for the member to fit; None if all are too few."""
        missing_milli = member.total_milli - self.inventory.usable_milli(member, node)
        count = 0
        while count < len(jobs) and missing_milli > 0:
            missing_milli -= self.on_node[node][jobs[count]]
            count += 1
        if missing_milli > 0:
            return None
        if self.inventory.counts_cards_only(node):
            return jobs[:count]
        for other in jobs[:count]:
            self.lift(other)
        while count < len(jobs) and not self.inventory.fits_on(member, node):
            self.lift(jobs[count])
            count += 1
        fits = self.inventory.fits_on(member, node)
        for other in reversed(jobs[:count]):
            self._restore(other)
        return jobs[:count] if fits else None

    def hold(self, job: ClusterJob, places: tuple[Placement, ...]) -> None:
        """Enter a job that is at these places as a matter of fact."""
        for member, place in zip(job.members, places, strict=True):
            self.inventory.hold(member, place)
        self.put(job, places)

    def forget_places(self, job: ClusterJob) -> None:
        """A job that was lifted is no longer where it was."""
        job.places = ()

    def note_places(self, job: ClusterJob, places: tuple[Placement, ...]) -> None:
        """Where a job still is that was told to leave; the inventory has given its cards to others."""
        job.places = places

    def _restore(self, job: ClusterJob) -> None:
        """Put a lifted job back where it was; nobody came there meanwhile."""
        self.hold(job, job.places)

    def _retake(self, job: ClusterJob) -> bool:
        """Put a lifted job back exactly where it was, if that is still free."""
        for number, (member, place) in enumerate(zip(job.members, job.places, strict=True)):
            if not self.inventory.retake(member, place):
                self._give_all(job, job.places[:number])
                return False
        self.put(job, job.places)
        return True

    def _give_all(self, job: ClusterJob, places: Iterable[Placement]) -> None:
        for member, place in zip(job.members, places, strict=False):
            self.inventory.give(member, place)


def _known(choices: list[tuple[int | None, int]]) -> Iterator[tuple[int, int]]:
    for moved_milli, node in choices:
        if moved_milli is not None:
            yield moved_milli, node
