"""Code walks: which files of the package run, in the order they are entered.

    python tools/walk.py match a.jpg b.jpg          one photo pair through hardnet.match
    python tools/walk.py search photos.index q.jpg  one query through an index
    python tools/walk.py index photos.index a.jpg   photos into an index
    python tools/walk.py train recipe.yaml KEY=...  the first batches of a training

A file counts when one of its functions runs, not when it is imported. docs/architecture.md draws
the walks; run this to check that they are still right.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import hardnet

HOUSE = Path(hardnet.__file__).parent


def walk(action: Callable[[], Any]) -> list[str]:
    """The files of the package whose functions run during ``action``, as they are entered."""
    entered: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(HOUSE)) and not importing(frame):
            entered.setdefault(str(Path(name).relative_to(HOUSE)))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return list(entered)


def importing(frame: FrameType | None) -> bool:
    """Whether a frame is part of an import, including lazy ones: readers follow calls."""
    while frame is not None:
        name = frame.f_code.co_name
        if name in ("<module>", "__getattr__") and frame.f_code.co_filename != __file__:
            return True
        frame = frame.f_back
    return False


def main() -> None:
    """Print one walk."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=("match", "search", "index", "train"))
    parser.add_argument("arguments", nargs="+")
    options = parser.parse_args()
    first, *rest = options.arguments
    if options.which == "match":
        files = walk(lambda: hardnet.match(first, rest[0]))
    elif options.which == "search":
        index = hardnet.Index(first)
        files = walk(lambda: index.search(rest[0]))
    elif options.which == "index":
        files = walk(lambda: hardnet.Index.build(first, rest, words=256))
    else:
        from hardnet.learn.recipe import read_recipe
        from hardnet.learn.trainer import Trainer
        from hardnet.nets import find_net
        from hardnet.patchsets.patchset import open_sets

        def train() -> None:
            recipe = read_recipe(first, rest)
            patches = open_sets(recipe.data, find_net(recipe.net).patch_size)
            with tempfile.TemporaryDirectory() as folder:
                Trainer(recipe, patches, Path(folder)).run()

        files = walk(train)
    print(f"{options.which}: {len(files)} files")
    for name in files:
        print(f"  {name}")


if __name__ == "__main__":
    main()
