"""Several shards as one: what each answers, joined as if it came from one index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.retrieval.cluster.shard_actor import OutdatedError
from hardnet.retrieval.cluster.slot import Slot, reason
from hardnet.retrieval.query import Query, Terms
from hardnet.retrieval.scoring import Scoring
from hardnet.retrieval.shard import ImageFeatures, Ranking

if TYPE_CHECKING:
    from hardnet.retrieval.store.snapshot import Snapshot
    from hardnet.retrieval.verification import Verification, Verified

Answer = TypeVar("Answer")


class LostError(Exception):
    """Shards did not answer: the search must begin anew without them.

    Attributes:
        lost: those whose process died, with the reason for people.
        hanging: those that took too long.
    """

    def __init__(self, lost: Mapping[Slot, str], hanging: Mapping[Slot, str]) -> None:
        super().__init__("; ".join([*lost.values(), *hanging.values()]))
        self.lost, self.hanging = lost, hanging


class ShardSet:
    """A ``Shard`` (ranking/shard.py) over actors; all that is asked must be answered.

    Args:
        ray: the module, connected.
        snapshot: the generation that all slots have opened.
        slots: the shards that are there.
        missing: names of those that are not.
        timeout: seconds that an answer may take.
    """

    def __init__(
        self,
        ray: Any,
        snapshot: Snapshot,
        slots: Sequence[Slot],
        missing: Sequence[str],
        timeout: float,
    ) -> None:
        self.missing = list(missing)
        self._ray, self._snapshot, self._timeout = ray, snapshot, timeout
        self._slots = list(slots)
        self._owner = {position: slot for slot in slots for position in slot.positions}

    def score(self, terms: Terms, scoring: Scoring, limit: int | None) -> Ranking:
        """See :class:`~hardnet.retrieval.shard.Shard`, also for the following."""
        from hardnet.retrieval.scoring import order

        shared = self._ray.put(terms)
        answers = self._ask(
            self._slots,
            lambda slot: slot.actor.score.remote(self._generation, shared, scoring, limit),
        )
        images = np.concatenate([np.zeros(0, np.int64), *(one for one, _ in answers)])
        scores = np.concatenate([np.zeros(0, np.float32), *(one for _, one in answers)])
        return order(images, scores, limit)

    def verify(
        self, query: Query, images: NDArray[np.int64], verification: Verification
    ) -> list[Verified]:
        """See there."""
        shared = self._ray.put(query)
        return self._by_owner(
            images,
            lambda slot, part: slot.actor.verify.remote(
                self._generation, shared, part, verification
            ),
        )

    def reliable(self, query: Query, images: NDArray[np.int64], h: int) -> NDArray[np.int64]:
        """See there."""
        shared = self._ray.put(query)
        counts: list[np.int64] = self._by_owner(
            images,
            lambda slot, part: slot.actor.reliable.remote(self._generation, shared, part, h),
        )
        return np.array(counts, np.int64)

    def features_of(self, images: NDArray[np.int64]) -> list[ImageFeatures]:
        """See there."""
        return self._by_owner(
            images, lambda slot, part: slot.actor.features_of.remote(self._generation, part)
        )

    def names(self, images: NDArray[np.int64]) -> list[str]:
        """See there; the driver has the names itself."""
        return [self._snapshot.name(int(image)) for image in images]

    @property
    def _generation(self) -> int:
        return self._snapshot.generation

    def _by_owner(
        self, images: NDArray[np.int64], ask: Callable[[Slot, NDArray[np.int64]], Any]
    ) -> list[Any]:
        """One answer per image, in their order; each shard is asked about its own."""
        numbers = np.asarray(images, np.int64)
        bases = np.asarray(self._snapshot.bases, np.int64)
        positions = np.searchsorted(bases, numbers, side="right") - 1
        places: dict[Slot, list[int]] = {}
        for place, position in enumerate(positions.tolist()):
            places.setdefault(self._owner[position], []).append(place)
        answers = self._ask(list(places), lambda slot: ask(slot, numbers[places[slot]]))
        joined: list[Any] = [None] * len(numbers)
        for own, answer in zip(places.values(), answers, strict=True):
            for place, one in zip(own, answer, strict=True):
                joined[place] = one
        return joined

    def _ask(self, slots: Sequence[Slot], ask: Callable[[Slot], Any]) -> list[Any]:
        """The answer of each slot, asked at the same time.

        Raises:
            LostError: with all those that died, hang or do not know the generation.
        """
        asked = [ask(slot) for slot in slots]
        ready = set(
            self._ray.wait(asked, num_returns=len(asked), timeout=self._timeout)[0] if asked else ()
        )
        answers, lost, hanging = [], {}, {}
        for slot, answer in zip(slots, asked, strict=True):
            if answer not in ready:
                hanging[slot] = f"no answer within {self._timeout:g} s"
                continue
            try:
                answers.append(self._ray.get(answer))
            except OutdatedError:  # its process was started anew between two questions
                lost[slot] = "its worker died and is being restarted"
            except HardnetError as error:
                raise HardnetError(reason(error)) from error
            except self._ray.exceptions.RayTaskError:
                raise  # a fault in the program, which the next attempt would have as well
            except self._ray.exceptions.RayError as error:
                lost[slot] = reason(error)
        if lost or hanging:
            raise LostError(lost, hanging)
        return answers
