"""Learn a vocabulary from a sample of photos: words by k-means, then what signatures need."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from hardnet.errors import HardnetError, Progress, counted, silent
from hardnet.features import FACTS, NPZ, Features, from_entry, read_entry, to_entry, write_entry
from hardnet.image_files import state_of
from hardnet.retrieval.compiled import faster
from hardnet.retrieval.photos import Describing
from hardnet.retrieval.vocabulary import (
    BITS,
    FEW,
    Assigner,
    CellAssigner,
    Cells,
    Rows,
    Vocabulary,
    load,
    prepare,
    project,
    save,
)
from hardnet.storage import OwnedFolder, replace_file, replacing
from hardnet.threads import map_threads

SMALLEST_SIZE, PUBLISHED_SIZE, LARGEST_SIZE = 1 << 10, 1 << 16, 1 << 20

SAMPLE_PER_WORD = 12
"""Features to train one word on: more make a better word, but all must fit in memory at once."""

FEWEST_PER_WORD = 8
"""A collection of a few photos gets few words, so that views of one thing can share them."""

REASONS = 3
"""Skipped photos that an error gives reasons for."""

VOCABULARY = "vocabulary.safetensors"


def size_for(features: int) -> int:
    """A sensible number of words for a collection of this many features: a power of two.

    A word needs about 16 descriptors to be learned from (8k words for the 118k features of 300
    small photographs). The published number, 65,536, is reached with a million features and then
    kept, because Hamming signatures do the rest. Beyond 2048 features per word, reading the lists
    of a query dominates, so a collection of more than 134 million features gets more words, up to a
    million.
    """
    wanted = max(min(features / 16, PUBLISHED_SIZE), features / 2048, SMALLEST_SIZE)
    return 1 << min(round(math.log2(wanted)), LARGEST_SIZE.bit_length() - 1)


def train_on_photos(
    photos: Mapping[str, Path],
    work: Path,
    describing: Describing,
    *,
    words: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[Vocabulary, dict[str, str]]:
    """Train words on a seeded sample of photos.

    Args:
        photos: name -> file. The sample depends on names only, and grows with the collection.
        work: folder for what is done so far; ``kept_features`` reads from it.
        describing: who describes photos, and how.
        words: how many; by default a number that suits the collection.
        seed: of the sample and of the training.
        progress: told how far it is.

    Returns:
        The vocabulary, which is also saved in ``work``, and why photos were skipped, by name.
    """
    settings = describing.settings
    if words is not None and words < 1:
        raise HardnetError(f"words is {words}: give at least 1")
    if not photos:
        raise HardnetError("there are no photos to learn visual words from: name some")
    expected = words or size_for(len(photos) * settings.keypoints)
    count = math.ceil(expected * SAMPLE_PER_WORD / settings.keypoints)
    names = sorted(photos, key=lambda name: _digest(f"{seed} {name}"))[:count]
    ours = OwnedFolder.mark(work)
    features = OwnedFolder.mark(ours.claim("features/"))
    sample = {name: photos[name] for name in names}
    skipped = _describe(sample, features, describing, progress)
    path = ours.claim(VOCABULARY)
    if path.exists():  # it was trained, and killed just before the index began
        return load(path), skipped
    kept = [features.path / _file_of(name) for name in sample if name not in skipped]
    most = min(expected * SAMPLE_PER_WORD, len(kept) * settings.keypoints)
    rows, name, weights = _descriptors(kept, most, progress)
    if not len(rows):
        features.dissolve()  # nothing that a later run could use
        why = [skipped[name] for name in sorted(skipped)]
        if len(why) > REASONS:
            why[REASONS:] = [f"and {counted(len(why) - REASONS, 'photo')} more"]
        raise HardnetError(
            "no photo has a keypoint, so there are no visual words to learn"
            + (f" (skipped: {'; '.join(why)})" if why else "")
        )
    suits = size_for(len(rows) * len(photos) // max(len(kept), 1))
    size = words or max(min(suits, len(rows) // FEWEST_PER_WORD), 1)
    vocabulary = train(
        rows[: size * SAMPLE_PER_WORD],
        min(size, len(rows)),
        descriptor=name,
        seed=seed,
        progress=progress,
        checkpoint=ours.claim("kmeans"),
        provenance={
            "photos": len(kept),
            "settings": settings.to_json(),
            "weights": weights,
            "seed": seed,
            "words_asked": words,
        },
    )
    with replacing(path) as part:
        save(vocabulary, part)
    return vocabulary, skipped


def _describe(
    sample: Mapping[str, Path], folder: OwnedFolder, describing: Describing, progress: Progress
) -> dict[str, str]:
    """Write the features of photos that have none yet; returns why photos were skipped, by name."""
    states: dict[str, dict[str, int]] = {}
    for name, photo in sample.items():
        if not _is_kept(folder.path / _file_of(name), photo):
            states[name] = {}
            with suppress(OSError):  # reading it will say why
                states[name] = state_of(photo)
    skipped: dict[str, str] = {}
    before = len(sample) - len(states)
    progress("describing", before, len(sample))
    with closing(describing.features([sample[name] for name in states])) as results:
        for done, (name, (_, result)) in enumerate(zip(states, results, strict=True), 1):
            if isinstance(result, HardnetError):
                skipped[name] = str(result)
            else:
                entry = to_entry(result, folder.path, state=states[name])
                write_entry(folder.claim(_file_of(name)), entry, folder)
            progress("describing", before + done, len(sample))
    return skipped


def kept_features(name: str, photo: Path, work: Path) -> Features | None:
    """The features of a photo that the sample had, if its file is still as it was then."""
    path = work / "features" / _file_of(name)
    try:
        kept = _is_kept(path, photo)
        return from_entry(read_entry(path), path.parent, str(path), "") if kept else None
    except HardnetError:
        return None


def _is_kept(path: Path, photo: Path) -> bool:
    try:
        return state_of(photo).items() <= read_entry(path, FACTS).items()
    except (HardnetError, OSError):  # not of the sample; or gone, which reading it will say
        return False


def has_features(work: Path) -> bool:
    """Whether the sample has any features so far."""
    return any((work / "features").glob(f"*{NPZ}"))


def _file_of(name: str) -> str:
    """Where the features of a photo wait; its name itself, as "../a.jpg", may point elsewhere."""
    return f"{_digest(name)[:24]}{NPZ}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()


def _descriptors(files: list[Path], most: int, progress: Progress) -> tuple[Rows, str, str]:
    """The first ``most`` descriptors (N, D) of these files; the descriptor's name and digest."""
    rows, name, weights, found = np.zeros((0, 1), np.float32), "", "", 0
    for done, path in enumerate(files):
        progress("reading", done, len(files))
        entry = read_entry(path, ("descriptors", "descriptor", "weights"))
        name, weights = (str(entry.get(fact, "")) for fact in ("descriptor", "weights"))
        vectors = entry["descriptors"].T
        if not len(vectors):
            continue
        if not found:  # all at once: to join parts at the end would take twice the memory
            try:
                rows = np.empty((most, vectors.shape[1]), np.float32)
            except MemoryError as error:
                raise HardnetError(
                    f"{most} features to learn words from do not fit in memory: ask for fewer words"
                ) from error
        part = vectors[: most - found]
        rows[found : found + len(part)] = part
        found += len(part)
        if found == most:
            break
    return rows[:found], name, weights


ITERATIONS = 10
LEAST_GAIN = 0.02
"""Training ends with an iteration that lowers the mean squared distance of descriptors from their
words by less than this share. With few descriptors per word, two iterations are enough."""

PER_WORD = 64
"""Training descriptors per word; of more, a seeded sample is taken. Words move little with more."""

LARGE = 8192
"""Larger vocabularies are searched by cells; up to this size it is quick to look at all words."""

FEW_FOR_MEDIANS = 8
"""A word of fewer training descriptors has its own projection as thresholds, not their medians:
the median of few is noise, and the word is their mean (or, for an empty word, the best guess)."""

_CHUNK = 65_536  # descriptors read or projected at once
_PIECE = 256  # of these, projected by one thread
_FEW_ROWS = 1 << 18  # training descriptors that are kept prepared: 128 MB at most of 128 numbers
_SPLIT = np.float32(1 / 1024)  # how far the halves of a split word are moved apart, relative
_ROUNDS = 3  # of the k-means that makes cells


def train(
    descriptors: NDArray[Any],
    size: int,
    *,
    descriptor: str,
    seed: int = 0,
    iterations: int = ITERATIONS,
    progress: Progress = silent,
    checkpoint: Path | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Vocabulary:
    """Learn ``size`` words from descriptors.

    The same descriptors, size and seed give the same words, whether interrupted or not. Words that
    no training descriptor is nearest to are left out, so the vocabulary may be smaller than asked:
    of fewer different descriptors than words, each becomes a word.

    Args:
        descriptors: (N, D), as a descriptor gives them; an array or a memory-mapped one. Those that
            are not finite are left out.
        size: number of words.
        descriptor: whose they are.
        seed: of the sample, the first words and the projection.
        iterations: of k-means, at most; fewer if words hardly move any more.
        progress: called with the step, how much of it is done, and how much there is in all.
        checkpoint: written after each iteration. Training that was killed continues from it;
            training on other descriptors replaces it. The caller deletes it once the vocabulary is
            saved.
        provenance: further facts to keep with the words, JSON values.
    """
    if size < 1 or iterations < 0:
        raise HardnetError(f"{size} words and {iterations} iterations: give at least 1 and 0")
    chosen, mean = _sample(descriptors, size, seed)
    count, size = len(chosen), min(size, len(chosen))

    def make_ready(numbers: NDArray[np.intp]) -> Rows:
        return prepare(np.asarray(descriptors[chosen[numbers]]), mean)

    few = make_ready(np.arange(count)) if count <= _FEW_ROWS else None

    def read(numbers: NDArray[np.intp]) -> Rows:
        return make_ready(numbers) if few is None else few[numbers]

    words = read(np.sort(np.random.default_rng(seed).permutation(count)[:size]))
    some = np.asarray(descriptors[chosen[:: max(count // 1000, 1)]])
    asked = {"size": size, "seed": seed, "iterations": iterations, "least_gain": LEAST_GAIN}
    identity = json.dumps(asked | {"data": zlib.crc32(some.tobytes(), count)}, sort_keys=True)
    done, before = 0, math.inf
    if checkpoint is not None and checkpoint.exists():
        words, done, before = _read_checkpoint(checkpoint, identity) or (words, 0, math.inf)
    total = (iterations + 1) * count
    labels = np.empty(count, np.int32)
    while True:
        cells = None
        if len(words) > LARGE:
            words, cells = make_cells(words)
        assigner = Assigner(words) if cells is None else CellAssigner(words, cells)
        sums, counts, lengths = np.zeros(words.shape), np.zeros(len(words), np.int64), 0.0
        for start in range(0, count, _CHUNK):
            part = slice(start, min(start + _CHUNK, count))
            rows = read(np.arange(part.start, part.stop))
            labels[part] = assigner.roughly(rows)
            _add_rows(rows, labels[part], sums, counts)
            lengths += float(np.einsum("nd,nd->", rows, rows, dtype=np.float64))
            progress("learning words", done * count + part.stop, total)
        # The sum of squared distances of all descriptors from their words.
        of_words = counts @ (words.astype(np.float64) ** 2).sum(axis=1)
        squares = float(lengths - 2 * (sums * words).sum() + of_words)
        if done == iterations or squares > (1 - LEAST_GAIN) * before:
            break
        words, done, before = means(words, sums, counts), done + 1, squares
        if checkpoint is not None:
            facts = {"iterations": str(done), "squares": repr(squares), "identity": identity}
            arrays = {"words": np.ascontiguousarray(words)}
            replace_file(checkpoint, safetensors.numpy.save(arrays, facts))
    if done < iterations:
        progress("learning words", total, total)
    about = dict(provenance or {}) | {
        "training_descriptors": count,
        "seed": seed,
        "iterations": done,
        "mean_squared_distance": squares / count,
    }
    used = np.bincount(labels, minlength=len(words)) > 0
    kept = np.concatenate([[0], np.cumsum(used)])  # of the words before each
    words, labels = words[used], kept[labels].astype(np.int32)
    if cells is not None:
        cells = Cells(cells.centres, kept[cells.starts])
    projection = random_projection(words.shape[1], seed)
    thresholds = _median_thresholds(words, projection, labels, read)
    return Vocabulary(words, mean, projection, thresholds, descriptor, about, cells)


def _sample(descriptors: NDArray[Any], size: int, seed: int) -> tuple[NDArray[np.intp], Rows]:
    if descriptors.ndim != 2 or not descriptors.shape[1]:
        raise HardnetError(f"descriptors have the shape {descriptors.shape}; expected (N, D)")
    chosen = np.arange(len(descriptors))
    if len(chosen) > PER_WORD * size:
        rng = np.random.default_rng([seed, 1])
        chosen = np.sort(rng.choice(len(chosen), PER_WORD * size, replace=False, shuffle=False))
    total, finite = np.zeros(descriptors.shape[1]), np.ones(len(chosen), bool)
    for start in range(0, len(chosen), _CHUNK):
        part = slice(start, start + _CHUNK)
        rows = np.asarray(descriptors[chosen[part]])
        finite[part] = np.isfinite(rows).all(axis=1)
        total += rows[finite[part]].sum(axis=0, dtype=np.float64)
    chosen = chosen[finite]
    if not len(chosen):
        raise HardnetError("there are no descriptors to learn words from: give more photographs")
    return chosen, (total / len(chosen)).astype(np.float32)


def _read_checkpoint(path: Path, identity: str) -> tuple[Rows, int, float] | None:
    """The words (K, D), how many iterations made them, and the sum of squares before the last.

    None if it is of another training.
    """
    try:
        with safe_open(str(path), framework="numpy") as stored:
            facts: dict[str, str] = stored.metadata() or {}
            if facts.get("identity") != identity:
                return None
            squares = float(facts["squares"])
            return stored.get_tensor("words"), int(facts["iterations"]), squares
    except (SafetensorError, OSError) as error:
        raise HardnetError(f"{path} is not a readable checkpoint, delete it: {error}") from error


def _add_rows(
    rows: Rows, labels: NDArray[np.int32], sums: NDArray[np.float64], counts: NDArray[np.int64]
) -> None:
    """Add the rows (N, D) to the sums (K, D) of their words (N,), and count them (K,)."""
    counts += np.bincount(labels, minlength=len(counts))
    for d, column in enumerate(cv2.transpose(rows)):  # several times as fast as numpy's copy
        sums[:, d] += np.bincount(labels, column, len(counts))


def means(words: Rows, sums: NDArray[np.float64], counts: NDArray[np.int64]) -> Rows:
    """The new words; one without descriptors takes half of a word that has most of them."""
    new = words.copy()
    used = counts > 0
    new[used] = sums[used] / counts[used, None]
    empty = np.flatnonzero(~used)
    crowded = np.argsort(-counts, kind="stable")[: len(empty)]
    crowded = crowded[counts[crowded] > 1]
    empty = empty[: len(crowded)]
    apart = np.where(np.arange(words.shape[1]) % 2, -_SPLIT, _SPLIT)
    new[empty] = new[crowded] * (1 + apart)
    new[crowded] *= 1 - apart
    return new


def make_cells(words: Rows) -> tuple[Rows, Cells]:
    """The words in the order of their cells, and the cells: k-means of the words themselves.

    About sqrt(K) cells, so that each has enough words for a look at it to be worth the call; and
    more than FEW, whose centres would be compared one by one.
    """
    count = min(max(round(math.sqrt(len(words))), FEW + 1), len(words))
    # Words that come ordered by cells, as from the last iteration of k-means, give a good start.
    centres = words[np.linspace(0, len(words) - 1, count).astype(np.intp)]
    for _ in range(_ROUNDS):
        sums, counts = np.zeros(centres.shape), np.zeros(count, np.int64)
        _add_rows(words, Assigner(centres)(words)[:, 0], sums, counts)
        used = counts > 0
        centres[used] = sums[used] / counts[used, None]
    labels = Assigner(centres)(words)[:, 0]
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(count + 1)).astype(np.int64)
    return words[order], Cells(centres, starts)


def random_projection(dim: int, seed: int) -> Rows:
    """(128, D) rows of unit length, drawn evenly from all orthogonal ones.

    More bits than dimensions cannot all be orthogonal: then there are blocks of D orthogonal rows.
    """
    rng = np.random.default_rng(seed)
    blocks = [_orthogonal(rng.normal(size=(dim, dim)).T) for _ in range(-(-BITS // dim))]
    return np.concatenate(blocks)[:BITS].astype(np.float32)


def _orthogonal(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gram and Schmidt: each row without what it shares with those before it, of unit length.

    Twice, for rounding. Without BLAS, whose last digits depend on the number of its threads.
    """
    out = np.empty_like(rows)
    for n, row in enumerate(rows):
        for _ in range(2):
            shares = (out[:n] * row).sum(axis=1)
            row = row - (out[:n] * shares[:, None]).sum(axis=0)
        out[n] = row / np.sqrt((row * row).sum())
    return out


def _projected(rows: Rows, projection: Rows) -> Rows:
    """(N, 128) rows (N, D) on each axis of the projection (128, D), the same on any machine."""
    out = np.empty((len(rows), len(projection)), np.float32)
    axes = np.ascontiguousarray(projection.T, np.float32)

    def some(start: int) -> None:
        part = slice(start, start + _PIECE)
        out[part] = faster(project)(np.ascontiguousarray(rows[part], np.float32), axes)

    map_threads(some, range(0, len(rows), _PIECE))
    return out


def _median_thresholds(
    words: Rows,
    projection: Rows,
    labels: NDArray[np.int32],
    read: Callable[[NDArray[np.intp]], Rows],
) -> NDArray[np.float16]:
    """(K, 128) the medians of each word's training descriptors, which ``read`` gives by number."""
    thresholds = _projected(words, projection)
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(len(words) + 1))
    first = 0
    while first < len(words):  # as many words as have descriptors that fit in memory, at least one
        last = max(int(np.searchsorted(ends, ends[first] + _CHUNK, "right")) - 1, first + 1)
        projected = _projected(read(order[ends[first] : ends[last]]), projection)
        starts, sizes = ends[first:last] - ends[first], np.diff(ends[first : last + 1])
        # All words of one size at once.
        for size in np.unique(sizes[sizes >= FEW_FOR_MEDIANS]).tolist():
            some = np.flatnonzero(sizes == size)
            rows = projected[starts[some, None] + np.arange(size)]
            thresholds[first + some] = np.median(rows, axis=1, overwrite_input=True)
        first = last
    return thresholds.astype(np.float16)
