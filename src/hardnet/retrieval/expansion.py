"""Query expansion: what the first search found is added to the query of a second one."""

from __future__ import annotations

from hardnet.retrieval.average_expansion import average_expansion
from hardnet.retrieval.hqe import hqe_expansion

__all__ = ["average_expansion", "hqe_expansion"]
