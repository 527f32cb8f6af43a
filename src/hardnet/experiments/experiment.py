"""One experiment in one folder: a grid, the recipe its cells share, and the sets to test on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.experiments.folder import SCORE, begin, locked, write_json
from hardnet.experiments.grid import Grid
from hardnet.experiments.held_out import open_held_out
from hardnet.experiments.results import collect
from hardnet.experiments.run import Report, Run, check, plan, run_free
from hardnet.learn.recipe import FREE, Recipe
from hardnet.patchsets.cache import Progress
from hardnet.patchsets.fingerprint import fingerprint
from hardnet.patchsets.union import open_sets

RESULTS = "results.json"


@dataclass(frozen=True)
class Tests:
    """What to test on.

    Attributes:
        brown: sets in the Brown layout, for FPR95.
        hpatches: a set in the HPatches layout, for matching mAP.
        pairs: test pairs taken of each Brown set; 0 for all.
        strip: patches taken of each strip of the HPatches set; 0 for all.
    """

    __test__ = False  # pytest: no test class

    brown: tuple[Path, ...] = ()
    hpatches: Path | None = None
    pairs: int = 0
    strip: int = 0

    @property
    def folders(self) -> list[Path]:
        """All sets."""
        return [*self.brown, *([self.hpatches] if self.hpatches else [])]


class Experiment:
    """A grid in a folder; the folder is refused if it was begun with other settings.

    Args:
        grid: the cells.
        base: the recipe that they change; its ``pairs`` are the budget of a cell.
        folder: ``CELL/`` are training runs, ``results.json`` is the end.
        tests: the sets to test on.
        cells: names of the cells to run, separated by commas; empty for all.
        seeds: runs per cell.
    """

    def __init__(
        self,
        grid: Grid,
        base: Recipe,
        folder: Path,
        tests: Tests,
        cells: str = "",
        seeds: int = 1,
    ) -> None:
        if not tests.folders:
            raise HardnetError("name a set to test on with --brown, --hpatches or both")
        if base.devices * base.nodes > 1:
            raise HardnetError(
                "a cell runs on one device: start the same command once per device, "
                "each process takes the cells that are free"
            )
        self.grid, self.base, self.folder, self.tests = grid, base, folder, tests
        chosen = [cell.name for cell in grid.choose(cells)]
        self._all = plan(grid.cells, base, seeds, folder)
        self.runs = [run for run in self._all if run.cell.name in chosen]
        begin(folder, self.settings())

    def settings(self) -> dict[str, Any]:
        """Everything that changes a number, as JSON; sets by name and fingerprint, no paths."""
        recipe = {k: v for k, v in asdict(self.base).items() if k not in (*FREE, "pairs", "data")}
        return {
            "experiment": self.grid.name,
            "budget": self.base.pairs,
            "data": [_identity(name) for name in self.base.data],
            **recipe,
            "init": _identity(self.base.init) if self.base.init else "",
            "brown": [_identity(str(folder)) for folder in self.tests.brown],
            "hpatches": _identity(str(self.tests.hpatches)) if self.tests.hpatches else None,
            "test_pairs": self.tests.pairs,
            "strip_patches": self.tests.strip,
            "cells": {cell.name: dict(cell.changes) for cell in self.grid.cells},
        }

    @property
    def data(self) -> list[Path]:
        """The folders of all sets, to train and to test on."""
        return [_folder(name) for name in self.base.data] + self.tests.folders

    def finished(self) -> int:
        """How many of the chosen runs are done, by whichever process."""
        return sum((run.folder / SCORE).exists() for run in self.runs)

    def run(self, report: Report | None = None, opening: Progress | None = None) -> list[Run]:
        """Do all chosen runs that are free; return those that another process is doing."""
        from hardnet.nets import NETS, build_net

        build_net(self.base.net)  # an unknown name is an error here, before patches are read
        size = NETS[self.base.net].patch_size
        train_set = open_sets(self.base.data, size, opening)
        check(self.runs, train_set)
        held_out = open_held_out(
            self.tests.brown, self.tests.hpatches, size, self.tests.pairs, self.tests.strip, opening
        )
        return run_free(self.runs, train_set, held_out, report)

    def finish(self, provenance: dict[str, Any], output: Path | None = None) -> dict[str, Any]:
        """Gather what is finished and write ``results.json``, and ``output`` if it is named.

        Of several processes the last one sees all cells: it waits for the others to have written.
        """
        with locked(self.folder, wait=True):
            results = collect(self.grid, self._all)
            results |= {"training": self._training(), "provenance": provenance}
            for path in (self.folder / RESULTS, *([output] if output else [])):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, results)
        return results

    def _training(self) -> str:
        """A line on what was trained and tested."""
        tests = [_folder(str(folder)).name for folder in self.tests.folders]
        return (
            f"{self.base.net} with a budget of {self.base.pairs:,} pairs per cell (the paper: "
            f"50,000,000) on {_names(self.base.data)}, tested on {_names(tests)}"
        )


def _folder(name: str) -> Path:
    """The folder of a set; ``FOLDER:SPLIT`` is a part of one."""
    path = Path(name)
    return path if path.exists() or ":" not in name else Path(name.rpartition(":")[0])


def _identity(name: str) -> str:
    folder = _folder(name)
    split = name.removeprefix(str(folder))
    return f"{folder.resolve().name}{split} {fingerprint(folder)[:12]}"


def _names(names: Sequence[str]) -> str:
    return " + ".join(Path(name).name for name in names)
