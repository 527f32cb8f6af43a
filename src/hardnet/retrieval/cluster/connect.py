"""Joining a Ray cluster, or starting one on this machine."""

from __future__ import annotations

import os
import socket
from typing import Any

from hardnet.errors import HardnetError, MissingExtraError
from hardnet.retrieval.closable import Closable

REACH_SECONDS = 5.0
"""How long a host may take to accept a connection."""


def load_ray() -> Any:
    """The module ray; MissingExtraError if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "cluster") from error
    return ray


class Connection(Closable):
    """This process as a driver of a cluster, until it is closed.

    A process that has called ``ray.init`` itself keeps its own connection, also afterwards.

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
        elif address not in ("local", "auto") and not _is_at(self.ray, address):
            raise HardnetError(
                f"this process is connected to another cluster than {address}: call ray.shutdown() "
                "first, or leave the address out"
            )

    def close(self) -> None:
        """Leave; a cluster that was started here ends."""
        if self._is_ours:
            self._is_ours = False
            self.ray.shutdown()


def _start(ray: Any, address: str) -> None:
    # What the workers print would be mixed with the output of the command.
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody was asked
        ray.init(address="local", include_dashboard=False, **quiet)
        return
    if address != "auto":
        reach(address)  # Ray itself would try for many minutes
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HardnetError(
            f"the Ray cluster {address} cannot be joined: {reason} (start one with ray start "
            "--head, or use local; if it asks for a token, set RAY_AUTH_MODE=token)"
        ) from error


def reach(address: str) -> None:
    """Raise if nobody listens there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise HardnetError(
            f"{address} is no address of a Ray cluster: give local, auto, HOST:PORT or "
            "ray://HOST:PORT"
        )
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise HardnetError(
            f"no Ray cluster answers at {address} ({error}): check the address, or start one with "
            "ray start --head"
        ) from error


def _is_at(ray: Any, address: str) -> bool:
    context = ray.get_runtime_context()
    return address.startswith("ray://") or context.gcs_address == address
