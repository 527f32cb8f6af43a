"""What is compared with what: the pairs and retrieval lists of a split, read or drawn.

Official files (``verif_*_split-X.csv``, ``retr_*_split-X.csv``) are used if the user has them.
Otherwise the lists are drawn by the published rule. The official ones were drawn with numpy's
legacy generator, whose stream never changes, so they depend only on the patch counts and the order
of the split's test sequences: the full set gives the official lists, other sets get others. The
order of the draws is the protocol: do not reorder them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, Steps, silent
from hardnet.images import Pixels
from hardnet.patchsets.hpatches import LEVELS, TARGETS
from hardnet.patchsets.patchset import Ints, refuse_stand_in
from hardnet.provenance import Cache, files_state
from hardnet.storage import replacing

SEED = 42
PAIRS = 1_000_000
"""Rows of each of the three official lists of pairs."""
IMAGES = 5
"""Images a pair is drawn from: the reference and four targets; the fifth target is never used."""
OWN_DRAW = f"our own draw with seed {SEED}"
"""The origin of lists that were not read from published files."""
QUERIES, DISTRACTORS = 10_000, 20_000
"""Rows of the official retrieval lists."""
QUERY_DRAWS, DISTRACTOR_DRAWS = 4, 10
"""Candidates drawn for each row wanted: repeated and flat patches are dropped."""
MIN_CONTRAST = 10.0
"""Retrieval uses patches whose grey values have a larger standard deviation."""
KEPT = 256
"""Strips held open: each may be a mapped file, and the system limits their number."""

PAIR_COLUMNS = ("s1", "t1", "idx1", "s2", "t2", "idx2")
PATCH_COLUMNS = ("s", "idx")
PAIR_FILES = ("verif_pos", "verif_neg_intra", "verif_neg_inter")
RETRIEVAL_FILES = ("retr_queries", "retr_distractors")
_PATCHES_AT_ONCE = 256

Rows = NDArray[np.int32]
Contrast = Callable[[int], NDArray[np.float64]]
"""Number of a sequence -> (N,) standard deviations of its reference patches."""
Lookup = Callable[[str, str], NDArray[Any]]
"""(sequence, strip) -> (N, D) descriptors."""
Lists = TypeVar("Lists", "PairLists", "RetrievalLists")


class PairLists(NamedTuple):
    """The three lists of verification pairs, each (P, 6): s1, t1, idx1, s2, t2, idx2.

    s is the number of the sequence in the split's test list, t the image (0 is the reference, k the
    target k at the noise level that is evaluated) and idx the patch. ``intra``: negatives from one
    sequence; ``inter``: the second patch is from any sequence; as published, sometimes the same.
    """

    positive: Rows
    intra: Rows
    inter: Rows


class RetrievalLists(NamedTuple):
    """Reference patches, each (N, 2): s, idx; pools are cut from the front of the distractors."""

    queries: Rows
    distractors: Rows


@dataclass(frozen=True)
class Tasks:
    """Everything the three tasks need to know about a split; the same for every descriptor.

    ``names``: test sequences, to which the lists refer by number; ``origin``: where "pairs" and
    "retrieval" come from, in words.
    """

    split: str
    names: tuple[str, ...]
    counts: tuple[int, ...]
    pairs: PairLists
    retrieval: RetrievalLists
    origin: Mapping[str, str]

    def facts(self) -> dict[str, Any]:
        return {
            "pairs": len(self.pairs.positive),
            "queries": len(self.retrieval.queries),
            "distractors": len(self.retrieval.distractors),
            "origin": dict(self.origin),
        }


def prepare(
    split: str,
    names: Sequence[str],
    counts: Mapping[str, int],
    folder: Path | None = None,
    patches: Callable[[str], Pixels] | None = None,
    pairs: int = PAIRS,
    progress: Steps = silent,
    data: str | None = None,
    chosen: Collection[str] = ("verification", "retrieval"),
) -> Tasks:
    """The lists of a split; slow ones are kept in the user's cache.

    Official files in ``folder`` are read, those that are absent are drawn. ``patches`` gives the
    (N, S, S) reference patches of a sequence, for the contrast of retrieval patches; None takes
    flat ones, too. Tasks that are not ``chosen`` have empty lists.
    """
    if not names:
        raise HardnetError(f"split {split} has no test sequences")
    if pairs < 5:
        raise HardnetError(f"at least 5 pairs are needed, got {pairs}")
    if folder is not None and not folder.is_dir():
        raise HardnetError(f"{folder} is not a folder with task files")
    sizes = [counts[name] for name in names]
    about = {"names": list(names), "counts": sizes}
    pair_paths = find_files(folder, split, PAIR_FILES)
    retrieval_paths = find_files(folder, split, RETRIEVAL_FILES)

    def make_pairs() -> PairLists:
        if pair_paths:
            return read_lists(PairLists, pair_paths, names, sizes, pairs)
        return draw_pairs(sizes, pairs, SEED, progress)

    def make_retrieval() -> RetrievalLists:
        if retrieval_paths:
            return read_lists(RetrievalLists, retrieval_paths, names, sizes)
        return draw_retrieval(sizes, patches and (lambda k: contrasts(patches(names[k]))))

    pair_lists = PairLists(*[np.zeros((0, 6), np.int32)] * 3)
    if "verification" in chosen:
        files = files_state(pair_paths) if pair_paths else SEED
        pair_lists = _kept(PairLists, about | {"pairs": pairs, "files": files}, make_pairs)
    retrieval = RetrievalLists(*[np.zeros((0, 2), np.int32)] * 2)
    if "retrieval" in chosen:
        kept = patches is not None and data is not None and not retrieval_paths
        wanted = about | {"data": data}
        retrieval = _kept(RetrievalLists, wanted, make_retrieval) if kept else make_retrieval()
    origin = {
        "pairs": "task files" if pair_paths else OWN_DRAW,
        "retrieval": "task files" if retrieval_paths else OWN_DRAW,
    }
    return Tasks(split, tuple(names), tuple(sizes), pair_lists, retrieval, origin)


def _kept(kind: type[Lists], about: dict[str, Any], make: Callable[[], Lists]) -> Lists:
    def save(path: Path, lists: Lists) -> None:
        with path.open("wb") as stream:  # savez would add a suffix to a path
            np.savez(stream, **lists._asdict())

    def load(path: Path) -> Lists:
        with np.load(path) as stored:
            return kind(**stored)

    return Cache("lists").get(about, make, save, load, ".npz", kind.__name__)


def draw_pairs(
    counts: Sequence[int], pairs: int = PAIRS, seed: int = SEED, progress: Steps = silent
) -> PairLists:
    """The three lists of pairs; seed 42 gives the official ones."""
    if not counts or min(counts) < 2:
        raise HardnetError("verification needs sequences of at least 2 patches each")
    rng = np.random.RandomState(seed)
    sequence = rng.randint(0, len(counts), pairs)
    size = np.asarray(counts)
    patch, image = np.empty((pairs, 2), np.int32), np.empty((pairs, 2), np.int32)
    # The official code draws two different numbers below n as the head of a permutation of n.
    for row, n in enumerate(size[sequence].tolist()):
        patch[row] = rng.permutation(n)[:2]
        if row % 10_000 == 0:
            progress(row, pairs)
    for row in range(pairs):
        image[row] = rng.permutation(IMAGES)[:2]
    other = rng.randint(0, len(counts), pairs)
    other_patch = rng.randint(0, size[other])
    progress(pairs, pairs)

    def rows(second: Ints, second_patch: NDArray[np.signedinteger]) -> Rows:
        columns = (sequence, image[:, 0], patch[:, 0], second, image[:, 1], second_patch)
        return np.stack(columns, 1).astype(np.int32)

    return PairLists(
        positive=rows(sequence, patch[:, 0]),
        intra=rows(sequence, patch[:, 1]),
        inter=rows(other, other_patch),
    )


def draw_retrieval(counts: Sequence[int], contrast: Contrast | None = None) -> RetrievalLists:
    """Queries and distractors by the rule of the official lists, as many as the set has.

    Of a set with fewer than 30 000 reference patches a third become queries and at most two thirds
    distractors. Candidates are drawn with replacement, first a sequence, then a patch of it; flat
    and repeated ones are dropped, and a distractor is never a query. A few less may remain.
    """
    total = sum(counts)
    wanted = min(QUERIES, total // 3)
    if not wanted:
        raise HardnetError(f"retrieval needs at least 3 reference patches, the set has {total}")
    limit = min(DISTRACTORS, 2 * wanted)
    rng = np.random.RandomState(SEED)
    candidates = []
    for number in (QUERY_DRAWS * wanted, DISTRACTOR_DRAWS * limit):
        sequence = rng.randint(0, len(counts), number)
        patch = rng.randint(0, np.asarray(counts)[sequence])
        candidates.append(np.stack([sequence, patch], 1).astype(np.int32))
    drawn = np.concatenate(candidates)
    flat = np.zeros(len(drawn), bool)
    for k, count in enumerate(counts):
        here = np.flatnonzero(drawn[:, 0] == k)
        if contrast is not None and len(here):
            values = contrast(k)
            if len(values) != count:
                raise ValueError(f"sequence {k}: {len(values)} contrasts, {count} patches")
            flat[here] = values[drawn[here, 1]] <= MIN_CONTRAST
    split = len(candidates[0])
    queries = _unique(drawn[:split][~flat[:split]])[:wanted]
    others = _unique(drawn[split:][~flat[split:]])
    others = others[~np.isin(_code(others), _code(queries))][:limit]
    if not len(queries) or not len(others):
        raise HardnetError(
            f"retrieval needs patches with a contrast above {MIN_CONTRAST:g} grey levels, "
            f"found {len(queries)} queries and {len(others)} distractors"
        )
    return RetrievalLists(queries, others)


def contrasts(patches: Pixels) -> NDArray[np.float64]:
    """(N, S, S) -> (N,) standard deviations of the grey values."""
    starts = range(0, len(patches), _PATCHES_AT_ONCE)
    parts = [patches[start : start + _PATCHES_AT_ONCE] for start in starts]
    return np.concatenate([np.zeros(0), *(part.reshape(len(part), -1).std(1) for part in parts)])


def _unique(rows: Rows) -> Rows:
    _, first = np.unique(_code(rows), return_index=True)
    unique: Rows = rows[np.sort(first)]
    return unique


def _code(rows: Rows) -> Ints:
    return rows[:, 0].astype(np.int64) << 32 | rows[:, 1]


def find_files(folder: Path | None, split: str, stems: Sequence[str]) -> list[Path]:
    """The files of a split, of ``PAIR_FILES`` or ``RETRIEVAL_FILES``; empty if there are none."""
    paths = [folder / f"{stem}_split-{split}.csv" for stem in stems] if folder else []
    missing = [path for path in paths if not path.is_file()]
    if 0 < len(missing) < len(paths):
        there = next(path for path in paths if path not in missing)
        raise HardnetError(f"{missing[0]} is missing, {there.name} is there: add it or remove both")
    return [] if missing else paths


def read_lists(
    kind: type[Lists],
    paths: Sequence[Path],
    names: Sequence[str],
    counts: Sequence[int],
    limit: int | None = None,
) -> Lists:
    """The first ``limit`` rows of official files of one kind."""
    columns = PAIR_COLUMNS if kind is PairLists else PATCH_COLUMNS
    return kind(*(_read(path, columns, names, counts, limit) for path in paths))


def _read(
    path: Path,
    columns: Sequence[str],
    names: Sequence[str],
    counts: Sequence[int],
    limit: int | None,
) -> Rows:
    number = {name: k for k, name in enumerate(names)}
    with path.open("rb") as head:
        refuse_stand_in(path, head.read(1024))

    def numbers(row: list[str]) -> Iterator[int]:
        """The values of a row; ValueError says what is wrong with it."""
        if len(row) != len(columns):
            raise ValueError(f"expected {len(columns)} columns, got {len(row)}")
        for column, text in zip(columns, row, strict=True):
            if column[0] == "s":
                if text not in number:
                    raise ValueError(f"{text} is not a test sequence of the split")
                name, count = text, counts[number[text]]
                yield number[text]
                continue
            try:
                value = int(text)
            except ValueError:
                raise ValueError(f"{column} is not a number of a patch or image: {text}") from None
            if column[0] == "t" and not 0 <= value <= TARGETS:
                raise ValueError(f"image {value} is not 0 to 5")
            if column[0] == "i" and not 0 <= value < count:
                raise ValueError(
                    f"patch {value} of {name}, which has {count} patches: is this the list of "
                    "another set?"
                )
            yield value

    def values(rows: Iterable[list[str]]) -> Iterator[int]:
        for line, row in enumerate(rows, 2):
            try:
                yield from numbers(row)
            except ValueError as error:
                raise HardnetError(f"{path}, line {line}: {error}") from None

    with path.open(newline="") as stream:
        reader = csv.reader(stream)
        if tuple(next(reader, ())) != tuple(columns):
            raise HardnetError(f"{path} does not begin with the line {','.join(columns)}")
        rows: Rows = np.fromiter(values(islice(reader, limit)), np.int32).reshape(-1, len(columns))
    if not len(rows):
        raise HardnetError(f"{path} has no rows")
    return rows


def write_lists(tasks: Tasks, folder: Path) -> list[Path]:
    """Write the lists in the format of the official files; empty ones are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [
        *((stem, PAIR_COLUMNS, rows) for stem, rows in zip(PAIR_FILES, tasks.pairs, strict=True)),
        *(
            (s, PATCH_COLUMNS, rows)
            for s, rows in zip(RETRIEVAL_FILES, tasks.retrieval, strict=True)
        ),
    ]
    written = []
    for stem, columns, rows in files:
        if not len(rows):
            continue
        written.append(folder / f"{stem}_split-{tasks.split}.csv")
        with replacing(written[-1]) as part, part.open("w", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(columns)
            for row in rows.tolist():
                named = zip(columns, row, strict=True)
                writer.writerow([tasks.names[n] if column[0] == "s" else n for column, n in named])
    return written


class Strips:
    """The strips of the test sequences at one noise level, by number; those last used are kept."""

    def __init__(self, lookup: Lookup, tasks: Tasks, noise: str) -> None:
        self._lookup, self._tasks, self._noise = lookup, tasks, noise
        self.get = lru_cache(KEPT)(self._get)

    def _get(self, sequence: int, image: int) -> NDArray[Any]:
        """(N, D) descriptors of an image (0 is the reference) of a sequence."""
        name, strip = self._tasks.names[sequence], tag(image, self._noise)
        found, count = self._lookup(name, strip), self._tasks.counts[sequence]
        if found.ndim != 2 or len(found) != count:
            raise HardnetError(
                f"{name}/{strip}: expected descriptors of {count} patches, "
                f"got an array of shape {found.shape}"
            )
        return found

    def gather(self, patches: Rows) -> NDArray[Any]:
        """Descriptors of patches anywhere in the split: (P, 3) s, t, idx -> (P, D)."""
        strip = patches[:, 0] * (TARGETS + 1) + patches[:, 1]
        order = np.argsort(strip, kind="stable")
        first = np.flatnonzero(np.diff(strip[order], prepend=-1))
        example = self.get(int(patches[0, 0]), int(patches[0, 1]))
        out = np.empty((len(patches), example.shape[1]), example.dtype)
        for members in np.split(order, first[1:]):
            sequence, image, _ = patches[members[0]].tolist()
            descriptors = self.get(sequence, image)
            if descriptors.shape[1] != out.shape[1] or descriptors.dtype != out.dtype:
                raise HardnetError(
                    f"{self._tasks.names[sequence]}/{tag(image, self._noise)} has descriptors of "
                    f"{descriptors.shape[1]} {descriptors.dtype}, others of {out.shape[1]} "
                    f"{out.dtype}: they cannot be compared"
                )
            out[members] = descriptors[patches[members, 2]]
        return out


def tag(image: int, noise: str) -> str:
    """The strip of an image at a noise level: 0 is ``ref`` at all of them."""
    return f"{LEVELS[noise]}{image}" if image else "ref"
