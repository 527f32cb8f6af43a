"""An index on many machines: photos described and shards searched by Ray's workers.

Nothing outside this package imports Ray, and it is imported only when used.
"""

from hardnet.retrieval.cluster.shards import ShardedIndex

__all__ = ["ShardedIndex"]
