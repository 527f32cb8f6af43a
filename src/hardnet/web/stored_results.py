"""Stored benchmark results, for the page: their tables and figures."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from hardnet.cache import Cache
from hardnet.errors import HardnetError
from hardnet.storage import file_state


class StoredResults:
    """The results files (.json) of a folder, as ``results`` of the repository."""

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._cache = folder, Cache("figures")
        self._drawing = threading.Lock()  # matplotlib draws one at a time
        self._known: dict[str, tuple[tuple[int, ...], Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._files())

    def _files(self) -> dict[str, Path]:
        if self._folder is None or not self._folder.is_dir():
            return {}
        return {path.stem: path for path in sorted(self._folder.glob("*.json"))}

    def entries(self) -> list[dict[str, Any]]:
        """The files that have tables."""
        from hardnet.bench.report import tables

        found = []
        for name in self._files():
            try:
                results = self._read(name)
                shown = tables(results)
            except (HardnetError, KeyError, TypeError, ValueError):  # some other JSON file
                continue
            if shown:
                kind = str(results.get("kind", "speed"))
                found.append({"name": name, "kind": kind, "title": shown[0].title})
        return found

    def get(self, name: str) -> dict[str, Any]:
        """The tables and figures of one file."""
        from hardnet.bench.report import tables

        results = self._read(name)
        shown = [
            {"title": t.title, "note": t.note, "columns": t.full_headings(": "), "rows": t.rows}
            for t in tables(results)
        ]
        return {
            "name": name,
            "kind": str(results.get("kind", "speed")),
            "command": (results.get("provenance") or {}).get("command"),
            "tables": shown,
            "figures": self._figures(results),
        }

    def figure(self, name: str, which: str) -> bytes:
        """A figure as PNG, drawn when it is first asked for."""
        from hardnet.bench.report import figure

        results = self._read(name)
        if which not in self._figures(results):
            raise HTTPException(404, "there is no such figure")
        about = {"results": name, "figure": which, "state": file_state(self._files()[name])}

        def draw(part: Path, _: None) -> None:
            picture = part.with_name(f"{part.name}.png")
            try:
                figure(results, picture, which)
                picture.replace(part)
            finally:
                picture.unlink(missing_ok=True)

        with self._drawing:
            return self._cache.get(about, lambda: None, draw, Path.read_bytes, ".png")

    def _figures(self, results: Any) -> list[str]:
        from hardnet.bench.report import figures

        if "kind" not in results or find_spec("matplotlib") is None:
            return []
        return figures(results)

    def _read(self, name: str) -> Any:
        from hardnet.bench.report import read_results

        path = self._files().get(name)
        if path is None:
            raise HTTPException(404, "there are no such results")
        state = file_state(path)
        if name not in self._known or self._known[name][0] != state:
            self._known[name] = state, read_results(path)
        return self._known[name][1]
