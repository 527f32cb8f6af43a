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
    try:
        return getattr(import_module(f"hardnet.{home}"), name)
    except ImportError as error:
        from hardnet.errors import MissingExtraError

        if not isinstance(error, MissingExtraError):
            raise
        return _Missing(name, error)


class _Missing:
    """Stands for a name whose extra is not installed, until it is used."""

    def __init__(self, name: str, error: ImportError) -> None:
        self._name, self._error = name, error

    def __repr__(self) -> str:
        return f"<hardnet.{self._name}: {self._error}>"

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self._error

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # those who look around, as pydoc does
            raise AttributeError(attribute)
        raise self._error


def __dir__() -> list[str]:
    return __all__
