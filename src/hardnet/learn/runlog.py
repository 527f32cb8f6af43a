"""The record of a training run: ``log.csv`` for people and scripts, TensorBoard for curves."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from hardnet.learn.checkpoint import failed_write, write_whole

LOG = "log.csv"
COLUMNS = ("step", "pairs", "lr", "loss", "positive", "negative", "pairs_per_second", "fpr95")


class RunLog:
    """Append rows; a resumed run first drops the rows after its checkpoint."""

    def __init__(self, folder: Path, step: int) -> None:
        self._path = folder / LOG
        rows = _rows_until(self._path, step) if step and self._path.exists() else []
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self._path, lambda file: file.write(text.getvalue().encode()))
        self._board = _open_board(folder / "tensorboard", step)

    def add(self, row: dict[str, float]) -> None:
        """Append one row; absent columns stay empty."""
        try:
            with self._path.open("a", newline="") as file:
                csv.DictWriter(file, COLUMNS).writerow(row)
        except OSError as error:
            raise failed_write(self._path, error) from error
        if self._board is not None:
            for key in set(row) - {"step", "pairs"}:
                self._board.add_scalar(key, row[key], int(row["step"]))

    def close(self) -> None:
        """Flush TensorBoard."""
        if self._board is not None:
            self._board.close()


def _rows_until(path: Path, step: int) -> list[dict[str, str]]:
    """The rows up to ``step``; a row that a kill or a full disk cut short has empty columns."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [r for r in rows if None not in r.values() and int(r["step"]) <= step]


def _open_board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # curves are a convenience: a missing tensorboard must not stop a run
        return None
    return SummaryWriter(str(folder), purge_step=step + 1)
