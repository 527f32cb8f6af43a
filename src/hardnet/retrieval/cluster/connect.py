"""Joining a Ray cluster or starting one here, and checking that its nodes fit together."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError, MissingExtraError

REACH_SECONDS = 5.0
"""How long a host may take to accept a connection."""


def load_ray() -> Any:
    """The module ray; MissingExtraError if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "cluster") from error
    return ray


class Connection(AbstractContextManager["Connection"]):
    """This process as a driver of a cluster, until it is closed.

    A process that called ``ray.init`` itself keeps its own connection afterwards.

    Args:
        address: "local" starts Ray on this machine, "auto" finds the cluster this machine belongs
            to, HOST:PORT is the head of a running one that it belongs to, ray://HOST:PORT the
            client server of any.

    Raises:
        HardnetError: nobody answers at that address.
    """

    def __init__(self, address: str) -> None:
        self.ray = load_ray()
        self._is_ours = not self.ray.is_initialized()
        if self._is_ours:
            _start(self.ray, address)
        elif not (
            address in ("local", "auto")
            or address.startswith("ray://")
            or address == self.ray.get_runtime_context().gcs_address
        ):
            raise HardnetError(
                f"this process is connected to a cluster other than {address}: call ray.shutdown() "
                "first, or omit the address"
            )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster; one that was started here is stopped."""
        if self._is_ours:
            self._is_ours = False
            self.ray.shutdown()


def _start(ray: Any, address: str) -> None:
    # The output of workers would mix with that of the command.
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody agreed to it
        ray.init(address="local", include_dashboard=False, **quiet)
        return
    if address != "auto":
        reach(address)  # Ray itself would keep trying for minutes
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HardnetError(
            f"cannot join the Ray cluster {address}: {reason} (start one with ray start "
            "--head, or use local; if it asks for a token, set RAY_AUTH_MODE=token)"
        ) from error


def reach(address: str) -> None:
    """Raise if nothing listens there."""
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


PROBE_SECONDS = 60.0
"""How long a node may take to start a process that answers."""


def working_nodes(ray: Any) -> list[dict[str, Any]]:
    """Ray's facts about the live nodes that offer cores; some heads have none."""
    nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) > 0]
    if not nodes:
        raise HardnetError("the Ray cluster has no node with cores: add one with ray start")
    return nodes


def check_nodes(ray: Any, folders: Sequence[Path] = ()) -> list[str]:
    """Check that every worker node can run hardnet and sees the folders under the same path.

    Returns Ray's ids of the nodes.

    Raises:
        HardnetError: names the node and what it lacks.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Inside a function, so that Ray sends its code: a node without hardnet could not import it.
    def probe(paths: list[str]) -> dict[str, Any]:
        import os
        import platform
        from importlib import metadata

        try:
            version = metadata.version("hardnet")
        except metadata.PackageNotFoundError:
            version = ""
        unseen = [path for path in paths if not os.path.isdir(path)]
        return {"hardnet": version, "python": platform.python_version(), "unseen": unseen}

    task = ray.remote(num_cpus=0, max_retries=0)(probe)
    paths = [str(folder) for folder in folders]
    nodes = working_nodes(ray)
    asked = [
        task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(paths)
        for node in nodes
    ]
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=PROBE_SECONDS)
    answered = set(ready)
    for node, answer in zip(nodes, asked, strict=True):
        name = node["NodeManagerHostname"]
        if answer not in answered:
            raise HardnetError(f"node {name} does not answer within {PROBE_SECONDS:.0f} s")
        try:
            facts = ray.get(answer)
        except ray.exceptions.RayError:
            continue  # the node has just left: it will have no worker
        _check(name, facts)
    return [node["NodeID"] for node in nodes]


def _check(node: str, facts: dict[str, Any]) -> None:
    ours = metadata.version("hardnet")
    if facts["hardnet"] != ours:
        theirs = f"hardnet {facts['hardnet']}" if facts["hardnet"] else "no hardnet"
        raise HardnetError(
            f'node {node} has {theirs}, this machine {ours}: pip install "hardnet[cluster]=={ours}"'
            " on all nodes"
        )
    here = platform.python_version_tuple()[:2]
    if tuple(facts["python"].split(".")[:2]) != here:
        raise HardnetError(
            f"node {node} has Python {facts['python']}, this machine {platform.python_version()}: "
            "use the same on all nodes"
        )
    if facts["unseen"]:
        raise HardnetError(
            f"node {node} does not see the folder {facts['unseen'][0]}: put it on a disk that all "
            "nodes share, under the same path"
        )


def reason(error: Exception) -> str:
    """One line about why a worker failed."""
    from ray.exceptions import RayActorError, RayTaskError

    if isinstance(error, RayTaskError):
        return str(error.cause)
    if isinstance(error, RayActorError) or "nreachable" in type(error).__name__:
        return "its worker died and is being restarted"
    return (str(error).strip() or type(error).__name__).splitlines()[0]
