"""The record of a training run: ``log.csv`` for people and scripts, TensorBoard for curves."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

COLUMNS = ("step", "pairs", "lr", "loss", "positive", "negative", "pairs_per_second", "fpr95")


class RunLog:
    """Append rows; a resumed run first drops the rows after its checkpoint."""

    def __init__(self, folder: Path, step: int) -> None:
        self._path = folder / "log.csv"
        rows = []
        if step and self._path.exists():
            with self._path.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if int(row["step"]) <= step]
        with self._path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        self._board = _open_board(folder / "tensorboard", step)

    def add(self, row: dict[str, float]) -> None:
        """Append one row; absent columns stay empty."""
        with self._path.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)
        if self._board is not None:
            for key in set(row) - {"step", "pairs"}:
                self._board.add_scalar(key, row[key], int(row["step"]))

    def close(self) -> None:
        """Flush TensorBoard."""
        if self._board is not None:
            self._board.close()


def _open_board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # curves are a convenience: a missing tensorboard must not stop a run
        return None
    return SummaryWriter(str(folder), purge_step=step + 1)
