"""Learned local image descriptors: load a descriptor, extract features, match and find photos.

>>> import hardnet
>>> result = hardnet.match("a.jpg", "b.jpg", keypoints=4096)  # doctest: +SKIP
>>> result.draw("matches.png")  # doctest: +SKIP
>>> hardnet.extract("a.jpg").save("a.features.npz")  # doctest: +SKIP
>>> index = hardnet.Index.build("photos.index", "photos")  # doctest: +SKIP
>>> index.search("a.jpg").draw("hits.png")  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardnet.descriptors import load
    from hardnet.errors import HardnetError, InputError
    from hardnet.features import Features, extract
    from hardnet.matching.matches import Matches, Strategy, match
    from hardnet.pipeline import extract_many
    from hardnet.retrieval.index import Index

__version__: str
__all__ = [
    "Features",
    "HardnetError",
    "Index",
    "InputError",
    "Matches",
    "Strategy",
    "__version__",
    "extract",
    "extract_many",
    "load",
    "match",
]

# Each name is imported when it is first used: `import hardnet` costs nothing.
_HOMES = {
    "errors": ("HardnetError", "InputError"),
    "descriptors": ("load",),
    "features": ("Features", "extract"),
    "matching.matches": ("Matches", "Strategy", "match"),
    "pipeline": ("extract_many",),
    "retrieval.index": ("Index",),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("hardnet")
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'hardnet' has no attribute '{name}'")
    return getattr(import_module(f"hardnet.{home}"), name)


def __dir__() -> list[str]:
    return __all__
