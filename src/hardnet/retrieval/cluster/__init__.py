"""An index on many machines: photos described and shards searched by Ray's workers.

Nothing outside this package imports Ray, and this module imports it only when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardnet.retrieval.cluster.describers import build_on_cluster
    from hardnet.retrieval.cluster.shards import ShardedIndex

__all__ = ["ShardedIndex", "build_on_cluster"]


def __getattr__(name: str) -> Any:
    if name == "ShardedIndex":
        from hardnet.retrieval.cluster.shards import ShardedIndex

        return ShardedIndex
    if name == "build_on_cluster":
        from hardnet.retrieval.cluster.describers import build_on_cluster

        return build_on_cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
