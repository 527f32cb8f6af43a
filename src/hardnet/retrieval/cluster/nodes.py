"""What the nodes of a cluster must have in common: hardnet, its version, and folders."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError

PROBE_SECONDS = 60.0
"""How long a node may take to start a process that answers."""


def working_nodes(ray: Any) -> list[dict[str, Any]]:
    """Ray's facts about the nodes that are there and have cores to give; some heads have none."""
    nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) > 0]
    if not nodes:
        raise HardnetError("the Ray cluster has no node with cores: add one with ray start")
    return nodes


def check_nodes(ray: Any, folders: Sequence[Path] = ()) -> list[str]:
    """Ask every node that will work whether it can work with us.

    Args:
        ray: the module, connected.
        folders: that every node must see under the same path.

    Returns:
        Ray's ids of the nodes.

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
            continue  # it left between two breaths: no worker will be there
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
