"""One shard as the driver sees it: its actor, its segments, and whether it answers."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from hardnet.errors import HardnetError
from hardnet.retrieval.cluster.shard_actor import OutdatedError, ShardActor

if TYPE_CHECKING:
    from hardnet.retrieval.store.manifest import Manifest

OPEN_SECONDS = 120.0
"""Seconds that a shard may take to start: a process, and perhaps a compiler."""

_STARTING = "its worker has not started yet"

_BYTES = 2**20
"""No cores are set aside for a shard, which would keep others from working while nobody searches.
But one that asks for nothing at all is put on any node, whatever it was told."""


class Slot:
    """A shard that comes and goes.

    After the actor has died, or kept a query waiting, the slot sends it the order to open its
    segments and is not asked anything before that is answered: a query never waits for a shard
    that is known to be away. A process that hangs is ended, and started anew.

    Args:
        ray: the module, connected.
        node: Ray's id of the node it should be on; on any other if that one dies.

    Attributes:
        actor: Ray's handle.
        positions: the segments of the snapshot that are its own.
        is_open: it answered last time.
        why_not: what kept it from answering, for people.
        is_outdated: the files it should open are gone.
        is_refused: it can not open its segments; the next :meth:`look` tries again.
        where: the node it was last seen on.
    """

    def __init__(self, ray: Any, node: str) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        # No retries: a query is asked again without the shard, which is quicker than its return.
        remote = ray.remote(
            num_cpus=0,
            memory=_BYTES,
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True),
        )
        self.actor = remote(ShardActor).remote()
        self.positions: tuple[int, ...] = ()
        self.is_open = self.is_outdated = self.is_refused = False
        self.why_not, self.where = _STARTING, ""
        self._opening: Any = None
        self._since = 0.0
        self._order: tuple[str, Manifest] | None = None

    def open(self, folder: str, manifest: Manifest, positions: Sequence[int]) -> None:
        """Give it segments; :meth:`look` tells when it has them."""
        self.positions = tuple(positions)
        self._order = folder, manifest
        self.lose(_STARTING)

    def lose(self, why: str) -> None:
        """It did not answer: ask nothing more before it has opened its segments again."""
        assert self._order is not None
        self.is_open = self.is_outdated = self.is_refused = False
        self.why_not = why
        self._opening = self.actor.open.remote(*self._order, self.positions)
        self._since = monotonic()

    def restart(self, why: str) -> None:
        """It hangs: start its process anew, which also a stopped one cannot refuse."""
        self._ray.kill(self.actor, no_restart=False)
        self.lose(why)

    def look(self, seconds: float = 0.0) -> bool:
        """Whether it answers now; an opening that is under way gets so many seconds."""
        if self.is_open or self._opening is None:
            return self.is_open
        ready, _ = self._ray.wait([self._opening], timeout=seconds)
        if not ready:
            if monotonic() - self._since > OPEN_SECONDS:
                self.restart(f"its worker did not open its segments within {OPEN_SECONDS:g} s")
            return False
        try:
            self.where = self._ray.get(self._opening)
            self.is_open, self.why_not = True, ""
        except OutdatedError:
            self.is_outdated, self._opening = True, None
        except HardnetError as error:
            self.lose(reason(error))
            self.is_refused = True
        except self._ray.exceptions.RayError as error:
            self.lose(reason(error))
        return self.is_open

    @property
    def opening(self) -> Any:
        """What to wait for until it may answer; None if there is nothing."""
        return None if self.is_open else self._opening

    def stop(self) -> None:
        """End the process for good."""
        self._ray.kill(self.actor)


def reason(error: Exception) -> str:
    """One line about why a worker did not do its work."""
    from ray.exceptions import RayActorError, RayTaskError

    if isinstance(error, RayTaskError):
        return str(error.cause)
    if isinstance(error, RayActorError) or "nreachable" in type(error).__name__:
        return "its worker died and is being restarted"
    return (str(error).strip() or type(error).__name__).splitlines()[0]
