"""A Ray cluster, and photos described by all of its workers; the driver writes the index."""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import metadata
from itertools import islice
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

AHEAD = 4
"""Batches per worker that wait for it, or for an earlier one: no worker waits for the driver."""

ATTEMPTS = 3
"""How often the worker of a single photo may die before the photo is given up."""

KILLED = "every worker that tried it died; use a smaller copy"
DIED = "its worker died and is being restarted"
SHARE = "on a disk that all nodes share, under the same path"


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module ray, with this process as a driver of a cluster.

    A process that called ``ray.init`` itself keeps its connection afterwards; a cluster that
    was started here is stopped. "local" starts Ray on this machine, "auto" finds the cluster this
    machine belongs to, HOST:PORT is the head of a running one that it belongs to, ray://HOST:PORT
    the client server of any.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "cluster") from error
    if ray.is_initialized():
        this = ("local", "auto", ray.get_runtime_context().gcs_address)
        if address not in this and not address.startswith("ray://"):
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
        busy = max(sum(cores) // each, 1)
        # We, not Ray, repeat the batches of a dead worker: it would try one that takes too much
        # memory for ever.
        task = ray.remote(num_cpus=each, max_retries=0, scheduling_strategy="SPREAD")(describe)
        weights = json.dumps(weights_of(settings, settings.load()[1]))
        ask = partial(task.remote, settings, weights, each)
        yield Describers(settings, ray, ask, workers or busy, workers or AHEAD * busy)


class Describers(Describing):
    """The same on the workers of a cluster, ``ahead`` batches at a time."""

    def __init__(
        self, settings: IndexSettings, ray: Any, ask: Callable[..., Any], workers: int, ahead: int
    ) -> None:
        super().__init__(settings, workers)
        self._ray, self._ask, self._ahead = ray, ask, ahead

    def features(self, images: Sequence[Path]) -> Generator[tuple[Path, Any], None, None]:
        return self._run(images)

    def indexed(
        self, images: Sequence[Path], vocabulary: Vocabulary
    ) -> Generator[tuple[Path, Any], None, None]:
        # A copy without values cached by the original.
        return self._run(images, vocabulary.digest, self._ray.put(replace(vocabulary)))

    def _run(self, images: Sequence[Path], *words: Any) -> Generator[tuple[Path, Any], None, None]:
        paths = [os.path.abspath(image) for image in images]  # a worker has its own current folder
        batch = max(min(BATCH, -(-len(images) // (self.workers or 1))), 1)
        batches = [paths[first : first + batch] for first in range(0, len(paths), batch)]
        answers = in_order(self._ray, lambda some: self._ask(some, *words), batches, self._ahead)
        with closing(answers):
            for path, image, result in zip(paths, images, answers, strict=True):
                if isinstance(result, Failure):
                    result = result.error(path, image)
                elif isinstance(result, Features):
                    result = replace(result, path=str(image))
                yield image, result


def in_order(
    ray: Any, ask: Callable[[Sequence[str]], Any], batches: Sequence[Sequence[str]], ahead: int
) -> Generator[Any, None, None]:
    """What ``ask`` answers for each photo of each batch, in order, even if workers die.

    Photos whose worker dies are repeated one by one, and given up if that does not help.
    """
    rest = iter(batches)
    pending: deque[tuple[Any, Sequence[str], int]] = deque()  # and how often their workers died
    try:
        while True:
            room = max(ahead - len(pending), 0)
            pending.extend((ask(some), some, 0) for some in islice(rest, room))
            if not pending:
                return
            answer, some, deaths = pending.popleft()
            try:
                results = ray.get(answer)
            except HardnetError as error:
                raise HardnetError(reason(error)) from error
            except ray.exceptions.RayTaskError:
                raise  # a bug: other workers would fail as well
            except ray.exceptions.RayError:
                if deaths < ATTEMPTS:
                    pending.extendleft((ask([one]), [one], deaths + 1) for one in reversed(some))
                    continue
                results = [Failure(f"{some[0]} cannot be described: {KILLED}")]
            yield from results
    finally:
        for answer, *_ in pending:
            ray.cancel(answer, force=True)


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


def describe(
    settings: IndexSettings,
    weights: str,
    cores: int,
    paths: Sequence[str],
    digest: str = "",
    vocabulary: Vocabulary | None = None,
) -> list[Features | IndexedImage | Failure]:
    """What a worker does with photos: their features, or why there are none.

    With a vocabulary, it is what an index keeps of them. The driver has these ``weights`` (JSON).
    """
    describing, images = _ready(settings, weights, cores), [Path(path) for path in paths]
    results: Generator[tuple[Path, Any], None, None]
    if vocabulary is None:
        results = describing.features(images)
    else:
        # Keep the first vocabulary: each batch brings a new copy without cached values.
        results = describing.indexed(images, _words.setdefault(digest, vocabulary))
    with closing(results):
        return [_sendable(path, result) for path, result in results]


_words: dict[str, Vocabulary] = {}


@cache
def _ready(settings: IndexSettings, weights: str, cores: int) -> Describing:
    """The network, loaded once in a process; an error if this node has other weights."""
    import cv2

    cv2.setNumThreads(cores)
    try:
        detector, descriptor = settings.load()
        compare(json.loads(weights), weights_of(settings, descriptor), "the index")
    except Exception as error:  # whatever it is, users must know which node
        raise HardnetError(f"node {socket.gethostname()}: {error}") from error
    if hasattr(descriptor, "threads"):
        descriptor.threads = cores
    return Describing(settings, cores, (detector, descriptor))


def _sendable(path: Path, result: Any) -> Any:
    if not isinstance(result, HardnetError):
        return result
    return Failure(str(result), "" if path.exists() else socket.gethostname())
