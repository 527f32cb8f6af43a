"""A Ray cluster, and photos described by all of its workers; the driver writes the index."""

from __future__ import annotations

import heapq
import os
import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError, MissingExtraError
from hardnet.features import Features
from hardnet.retrieval.photos import (
    Describing,
    IndexSettings,
    compare,
    weights_of,
)
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.vocabulary import Vocabulary

REACH_SECONDS = 5.0
"""How long a host may take to accept a connection."""

PROBE_SECONDS = 60.0
"""How long a node may take to start a process that answers."""

CORES = 4
"""Of one worker process: more share a network, fewer keep more photos in memory."""

BATCH = 8
"""Photos per batch: seconds of work, a few megabytes of results."""

IN_HAND = 2
"""Batches queued per worker, so that it never waits for the driver."""

AHEAD = 4
"""Finished batches per worker that may wait for an earlier one: limits memory."""

ATTEMPTS = 3
"""How often the worker of a single photo may die before the photo is given up."""

DIED = "its worker died and is being restarted"
SHARE = "on a disk that all nodes share, under the same path"


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module ray, with this process as a driver of a cluster.

    A process that called ``ray.init`` itself keeps its own connection afterwards; a cluster that
    was started here is stopped. "local" starts Ray on this machine, "auto" finds the cluster this
    machine belongs to, HOST:PORT is the head of a running one that it belongs to, ray://HOST:PORT
    the client server of any.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "cluster") from error
    if ray.is_initialized():
        own = ("local", "auto", ray.get_runtime_context().gcs_address)
        if address not in own and not address.startswith("ray://"):
            raise HardnetError(
                f"this process is connected to a cluster other than {address}: call ray.shutdown() "
                "first, or omit the address"
            )
        yield ray
        return
    # The output of workers would mix with that of the command.
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody agreed to it
        options["include_dashboard"] = False
    elif address != "auto":
        _reach(address)  # Ray itself would keep trying for minutes
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, ImportError) as error:
        raise HardnetError(
            f"cannot join the Ray cluster {address}: {_first_line(error)} (start one with "
            "ray start --head, or use local; if it asks for a token, set RAY_AUTH_MODE=token)"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise HardnetError(
            f"{address} is not the address of a Ray cluster: give local, auto, HOST:PORT or "
            "ray://HOST:PORT"
        )
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise HardnetError(
            f"no Ray cluster answers at {address} ({error}): check the address, or start one with "
            "ray start --head"
        ) from error


def check_nodes(ray: Any, folders: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Ray's facts about the live nodes that offer cores; some heads have none.

    Raises unless all of them have this hardnet and see the folders under the same path.
    """

    # Inside a function, so that Ray sends its code: a node without hardnet could not import it.
    def probe(paths: list[str]) -> tuple[str, list[str]]:
        import os
        from importlib import metadata

        try:
            version = metadata.version("hardnet")
        except metadata.PackageNotFoundError:
            version = ""
        return version, [path for path in paths if not os.path.isdir(path)]

    task = ray.remote(num_cpus=0, max_retries=0)(probe)
    nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) > 0]
    if not nodes:
        raise HardnetError("the Ray cluster has no node with cores: add one with ray start")
    paths = [str(folder) for folder in folders]
    asked = [
        task.options(scheduling_strategy=on_node(node["NodeID"], soft=False)).remote(paths)
        for node in nodes
    ]
    ready = set(ray.wait(asked, num_returns=len(asked), timeout=PROBE_SECONDS)[0])
    ours = metadata.version("hardnet")
    for node, answer in zip(nodes, asked, strict=True):
        name = node["NodeManagerHostname"]
        if answer not in ready:
            raise HardnetError(f"node {name} does not answer within {PROBE_SECONDS:.0f} s")
        try:
            version, unseen = ray.get(answer)
        except ray.exceptions.RayError:
            continue  # the node has just left: it will have no worker
        if version != ours:
            theirs = f"hardnet {version}" if version else "no hardnet"
            raise HardnetError(
                f"node {name} has {theirs}, this machine {ours}: pip install "
                f'"hardnet[cluster]=={ours}" on all nodes'
            )
        if unseen:
            raise HardnetError(f"node {name} does not see the folder {unseen[0]}: put it {SHARE}")
    return nodes


def on_node(node: str, soft: bool) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=soft)


def reason(error: Exception) -> str:
    """One line about why a worker failed."""
    from ray.exceptions import RayActorError, RayTaskError

    if isinstance(error, RayTaskError):
        return str(error.cause)
    if isinstance(error, RayActorError) or "nreachable" in type(error).__name__:
        return DIED
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def describers_on(
    address: str, settings: IndexSettings, workers: int | None = None
) -> Iterator[Describers]:
    """Worker processes on all nodes of the cluster at ``address``, each with its own network.

    With them, :func:`~hardnet.retrieval.build.build` makes the same index, bit for bit. The photos
    must be on a disk that all nodes share, under the same path; the folder of the index need not
    be. ``workers`` are processes, by default as many as the cores of the cluster can keep busy.
    """
    with connected(address) as ray:
        cores = [int(node["Resources"]["CPU"]) for node in check_nodes(ray)]
        each = max(min(CORES, *cores), 1)
        weights = weights_of(settings, settings.load()[1])
        # We, not Ray, repeat the batches of a dead worker: other workers are free.
        remote = ray.remote(
            num_cpus=each, max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD"
        )(DescribeActor)
        count = workers or max(sum(cores) // each, 1)
        actors = [remote.remote(settings, weights, each) for _ in range(count)]
        try:
            yield Describers(settings, ray, actors)
        finally:
            for actor in actors:
                ray.kill(actor)


class Describers(Describing):
    """The same on the workers of a cluster."""

    def __init__(self, settings: IndexSettings, ray: Any, actors: Sequence[Any]) -> None:
        super().__init__(settings)
        self._ray, self._actors = ray, actors

    def features(self, images: Sequence[Path]) -> Generator[tuple[Path, Any], None, None]:
        return self._run(images)

    def indexed(
        self, images: Sequence[Path], vocabulary: Vocabulary
    ) -> Generator[tuple[Path, Any], None, None]:
        # A copy without values cached by the original.
        return self._run(images, vocabulary.digest, self._ray.put(replace(vocabulary)))

    def _run(self, images: Sequence[Path], *words: Any) -> Generator[tuple[Path, Any], None, None]:
        paths = [os.path.abspath(image) for image in images]  # a worker has its own current folder
        batch = max(min(BATCH, -(-len(images) // len(self._actors))), 1)
        with closing(dispatch(self._ray, self._actors, paths, words, batch)) as results:
            for path, image, result in zip(paths, images, results, strict=True):
                if isinstance(result, Failure):
                    result = result.error(path, image)
                elif isinstance(result, Features):
                    result = replace(result, path=str(image))
                yield image, result


@dataclass(frozen=True)
class Failure:
    """Why a photo could not be described; unlike some errors, it can be sent to the driver."""

    why: str  # for display
    unseen_by: str = ""  # the node that does not see the file at all; "" if it was read

    def error(self, path: str, image: Path) -> HardnetError:
        """The error of a photo whose ``path`` the worker got, with the path that the user gave."""
        if self.unseen_by and os.path.exists(image):
            raise HardnetError(f"node {self.unseen_by} does not see {path}: put the photos {SHARE}")
        return HardnetError(self.why.replace(path, str(image)))


class DescribeActor:
    """Describes photos with one network, using the driver's settings and weights."""

    def __init__(self, settings: IndexSettings, weights: Mapping[str, Any], cores: int) -> None:
        self._settings, self._weights, self._cores = settings, weights, cores
        self._describing: Describing | None = None
        self._words: tuple[str, Vocabulary] | None = None

    def ready(self) -> None:
        """Load the network; an error if this node cannot, or has other weights of that name."""
        try:
            self._load()
        except Exception as error:  # whatever it is, users must know which node
            raise HardnetError(f"node {socket.gethostname()}: {error}") from error

    def describe(
        self, paths: Sequence[str], digest: str = "", vocabulary: Vocabulary | None = None
    ) -> list[Features | IndexedImage | Failure]:
        """Features of photos; with a vocabulary, what an index keeps of them. Or why not."""
        describing, images = self._load(), [Path(path) for path in paths]
        results: Generator[tuple[Path, Any], None, None]
        if vocabulary is None:
            results = describing.features(images)
        else:
            # Keep the first vocabulary: each batch brings a new copy without cached values.
            if self._words is None or self._words[0] != digest:
                self._words = digest, vocabulary
            results = describing.indexed(images, self._words[1])
        with closing(results):
            return [_sendable(path, result) for path, result in results]

    def _load(self) -> Describing:
        if self._describing is None:
            import cv2

            cv2.setNumThreads(self._cores)
            detect, describe = self._settings.load()
            compare(self._weights, weights_of(self._settings, describe), "the index")
            if hasattr(describe, "threads"):
                describe.threads = self._cores
            self._describing = Describing(self._settings, self._cores, (detect, describe))
        return self._describing


def _sendable(path: Path, result: Any) -> Any:
    if not isinstance(result, HardnetError):
        return result
    return Failure(str(result), "" if path.exists() else socket.gethostname())


Batch = tuple[tuple[int, ...], int]
"""Places of photos that are described together, and how often their worker has died."""


def dispatch(
    ray: Any,
    actors: Sequence[Any],
    paths: Sequence[str],
    words: Sequence[Any] = (),
    batch: int = BATCH,
) -> Generator[Any, None, None]:
    """What the actors say of each photo, in order, even if workers die.

    Ray's ActorPool would leave workers idle that finish early, and lose those that die. Here, other
    workers repeat the photos of one that died, one by one, so that none is blamed for another, and
    a photo that kills them is given up.
    """
    count = len(paths)
    # A heap: the earliest is needed first.
    todo: list[Batch] = [
        (tuple(range(first, min(first + batch, count))), 0) for first in range(0, count, batch)
    ]
    # What each answer is of: a worker, and its batch; none if a new process says that it is ready.
    pending: dict[Any, tuple[Any, Batch]] = {
        actor.ready.remote(): (actor, ((), 1)) for actor in actors
    }
    done: dict[int, Any] = {}

    def may_take(actor: Any, deaths: int) -> bool:
        """A photo whose worker has died is alone with the next one."""
        hand = [before for owner, (_, before) in pending.values() if owner is actor]
        return not hand if deaths or any(hand) else len(hand) < IN_HAND

    following = 0
    while following < count:
        limit = following + AHEAD * len(actors) * batch
        for actor in actors:
            while todo and todo[0][0][0] < limit and may_take(actor, todo[0][1]):
                given = heapq.heappop(todo)
                some = [paths[place] for place in given[0]]
                pending[actor.describe.remote(some, *words)] = actor, given
        for ref in ray.wait(list(pending), num_returns=1)[0]:
            actor, (places, deaths) = pending.pop(ref)
            try:
                answer = ray.get(ref)
                if places:
                    done.update(zip(places, answer, strict=True))
            except HardnetError as error:
                raise HardnetError(reason(error)) from error
            except ray.exceptions.RayTaskError:
                raise  # a bug: other workers would fail as well
            except ray.exceptions.RayError as error:
                pending[actor.ready.remote()] = actor, ((), 1)
                for place in places:
                    if deaths < ATTEMPTS:
                        heapq.heappush(todo, ((place,), deaths + 1))
                    else:
                        done[place] = Failure(
                            f"{paths[place]} cannot be described: {reason(error)}, repeatedly; "
                            "use a smaller copy"
                        )
        while following in done:
            yield done.pop(following)
            following += 1
