"""How well copies, crops and scenes are found among photographs, compared with perceptual hashes.

Copies of photographs are made with every edit of ``copies.py``; photos of other things, views of
the same scene, pages of text and repeated patterns must not count as copies. All methods see the
same files.

Example: python benchmarks/find_copies.py photos/val --objects data/ukbench
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from pathlib import Path
from time import process_time
from typing import Annotated, Any

import cv2
import numpy as np
import typer
from copies import EDITS, QUALITY, SWEEP, Edit, pattern, sweep, text_page
from measuring import Descriptor, Keypoints, Output, finish, run_script, say

from hardnet.bench.metrics import Floats
from hardnet.errors import HardnetError, MissingExtraError, Progress
from hardnet.images import Pixels, list_images, read_image, shrink, to_colour
from hardnet.retrieval.groups import find_groups
from hardnet.retrieval.index import Index
from hardnet.retrieval.kinds import EDITS as EDIT_KINDS
from hardnet.retrieval.kinds import KINDS, corners, inverse, moved
from hardnet.retrieval.photos import DESCRIPTOR

RULES = {
    "found": "share of copies paired with their photograph, whatever kind of edit is reported",
    "kind": "share of copies whose pair has the correct kind",
    "map": "median over pairs of the largest corner error, in % of the copy's longer side",
    "hash": "pairs of photos whose 64-bit hashes differ in at most the given number of bits",
    "false copies": "groups of copies that contain two different exposures",
    "false groups": "groups of any kind that contain two different scenes",
    "sweep": "share of sweeps whose photos all form one panorama; in order: correctly ordered",
    "false panoramas": "panoramas with photos from two sweeps or from none",
    "same object": "share of photo pairs of one object that end up in one group",
    "together": "share of a scene's photos that are in its largest group",
}


def main(
    photos: Annotated[list[Path], typer.Argument(help="Folders: copies are made of some.")],
    scenes: Annotated[
        list[Path] | None, typer.Option(help="A folder of photos of one scene; may be repeated.")
    ] = None,
    objects: Annotated[
        list[Path] | None, typer.Option(help="A folder like UKBench: four photos of each object.")
    ] = None,
    wide: Annotated[
        list[Path] | None, typer.Option(help="A folder of wide photos, to make sweeps of.")
    ] = None,
    sources: Annotated[int, typer.Option(help="Photos that copies are made of.", min=1)] = 40,
    size: Annotated[int, typer.Option(help="Longer side of all photos.", min=64)] = 640,
    keypoints: Keypoints = 500,
    descriptor: Descriptor = DESCRIPTOR,
    words: Annotated[int, typer.Option(help="Visual words of the index.", min=1)] = 2048,
    most: Annotated[
        int, typer.Option(help="Most photos per folder of --scenes and --objects.", min=1)
    ] = 400,
    pages: Annotated[int, typer.Option(help="Text pages, and as many patterns.", min=0)] = 20,
    distance: Annotated[
        int, typer.Option(help="Largest distance of the hashes of copies, in bits.", min=0)
    ] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the edits.", min=0)] = 0,
    work: Annotated[
        Path | None,
        typer.Option(help="Keep the copies and their index here: the same command continues."),
    ] = None,
    output: Output = Path("results/groups.json"),
) -> None:
    """Recall per edit and wrong groups, compared with hashes; writes a JSON file."""
    settings = GroupSettings(
        sources, size, keypoints, descriptor, words, most, pages, distance, seed
    )
    given = Given(photos, scenes or (), objects or (), wide or ())
    with tempfile.TemporaryDirectory(prefix="hardnet-copies-") as temporary:
        found = compare(given, settings, work or Path(temporary), say)
    data = chain(*vars(given).values())
    finish("groups", {"rules": RULES, **found}, data, output)


@dataclass(frozen=True)
class GroupSettings:
    """What is compared, and how: the options of :func:`main`."""

    sources: int = 40
    size: int = 640
    keypoints: int = 500
    descriptor: str = DESCRIPTOR
    words: int = 2048
    most: int = 400
    pages: int = 20
    distance: int = 8
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Made:
    """One file of the collection; ``transform`` (2, 3) maps from the photo it was made from."""

    path: Path
    exposure: str
    scene: str
    size: tuple[int, int] = (0, 0)
    edit: Edit | None = None
    transform: Floats | None = None
    object_of: str | None = None
    shared: int | None = None  # of a sweep: what neighbours have in common, in %


Pair = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Method:
    """What one method says about the collection.

    ``pairs``: sorted paths -> kind, map from the first to the second, None if it gives none.
    ``kinds`` are those of the groups.
    """

    pairs: Mapping[Pair, tuple[str, Floats | None]]
    copies: Sequence[Sequence[str]]
    groups: Sequence[Sequence[str]]
    seconds: dict[str, float] = field(default_factory=dict)
    kinds: Sequence[str] = ()


@dataclass(frozen=True)
class Given:
    """Folders of photos.

    Copies are made of some ``photos``; a folder of ``scenes`` shows one scene; ``objects`` are in
    the layout of UKBench; every photo of ``wide`` is replaced by a sweep of it.
    """

    photos: Sequence[Path]
    scenes: Sequence[Path] = ()
    objects: Sequence[Path] = ()
    wide: Sequence[Path] = ()


def compare(
    given: Given, settings: GroupSettings, work: Path, progress: Progress
) -> dict[str, Any]:
    """Make the collection, let every method group it, and count.

    Files that an earlier run left in ``work`` are reused.
    """
    work = work.resolve()  # an index returns absolute paths
    made = list(make_collection(given, settings, work / "photos", progress))
    methods = {"hardnet": our_method(settings, work, progress)}
    for name in ("phash", "dhash"):
        methods[name] = hash_method(made, name, settings.distance, progress)
    return {
        "photos": {
            "all": len(made),
            "sources": len({one.exposure for one in made if one.edit is not None}),
            "copies": sum(one.edit is not None for one in made),
            "objects": len({one.scene for one in made if one.object_of}),
            "sweeps": len({one.scene for one in made if one.shared}),
        },
        "edits": [edit_row(edit, made, methods) for edit in EDITS],
        "methods": [method_row(name, method, made) for name, method in methods.items()],
        "sweeps": list(sweep_rows(methods["hardnet"], made)),
        "scenes": list(scene_rows(methods["hardnet"], made)),
        "mistakes": _mistakes(methods["hardnet"], made),
    }


def make_collection(
    given: Given, settings: GroupSettings, folder: Path, progress: Progress
) -> Iterator[Made]:
    """Write all files; see :func:`compare`."""
    folder.mkdir(parents=True, exist_ok=True)
    photos = [photo for one in given.photos for photo in list_images(one)]
    if not photos:
        raise HardnetError("there is no photograph to make copies of: name a folder")
    step = max(len(photos) / settings.sources, 1.0)
    chosen = {photos[int(at)] for at in np.arange(0, len(photos), step)[: settings.sources]}

    def shrunk(photo: Path) -> Pixels:
        return shrink(to_colour(read_image(photo)), settings.size)[0]

    for number, photo in enumerate(photos):
        progress("making copies", number, len(photos))
        name, scene = f"photo-{number:04d}", photo.stem.rstrip("0123456789_-")
        pixels = shrunk(photo)
        yield _write(Made(folder / f"{name}.jpg", name, scene), pixels)
        for at, edit in enumerate(EDITS if photo in chosen else ()):
            rng = np.random.default_rng([settings.seed, number, at])
            copy, transform = edit.make(pixels, rng)
            path = folder / f"{name}-{at:02d}.jpg"
            yield _write(Made(path, name, scene, (0, 0), edit, transform), copy)
    for place in given.scenes:
        for photo in list_images(place)[: settings.most]:
            name = f"scene-{place.name}-{photo.stem}"
            made = Made(folder / f"{name}.jpg", name, f"scene-{place.name}")
            yield _write(made, shrunk(photo))
    for place in given.objects:
        for number, photo in enumerate(list_images(place)[: settings.most]):
            name, scene = f"object-{number:05d}", f"object-{number // 4:05d}"
            made = Made(folder / f"{name}.jpg", name, scene, object_of=place.name)
            yield _write(made, shrunk(photo))
    for number, photo in enumerate(photo for one in given.wide for photo in list_images(one)):
        rng = np.random.default_rng([settings.seed, number])
        pixels = shrink(to_colour(read_image(photo)), 2 * settings.size)[0]
        shared, scene = SWEEP[number % len(SWEEP)], f"sweep-{number:03d}"
        for at, view in enumerate(sweep(pixels, rng, shared / 100)):
            name = f"{scene}-{at}"
            made = Made(folder / f"{name}.jpg", name, scene, shared=shared)
            yield _write(made, shrink(view, settings.size)[0])
    for number in range(settings.pages):
        rng = np.random.default_rng([settings.seed, number])
        for kind, draw in (("page", text_page), ("pattern", pattern)):
            name = f"{kind}-{number:03d}"
            yield _write(Made(folder / f"{name}.jpg", name, name), to_colour(draw(rng)))


def _write(made: Made, pixels: Pixels) -> Made:
    quality = QUALITY if made.edit is None else made.edit.quality
    good, data = cv2.imencode(".jpg", pixels[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert good
    content = data.tobytes()
    if not made.path.exists() or made.path.read_bytes() != content:  # an index knows it by its time
        made.path.write_bytes(content)
    return replace(made, size=(pixels.shape[1], pixels.shape[0]))


def our_method(settings: GroupSettings, work: Path, progress: Progress) -> Method:
    """An index of the collection, and its groups."""
    start = process_time()
    index = Index.build(
        work / "index",
        work / "photos",
        descriptor=settings.descriptor,
        keypoints=settings.keypoints,
        max_size=settings.size,
        words=settings.words,
        progress=progress,
    )
    built = process_time()
    found = find_groups(index, progress=progress)
    seconds = {"index": built - start, "groups": process_time() - built}
    pairs = {(pair.a, pair.b): (str(pair.kind), pair.transform) for pair in found.pairs}
    copies = [group.photos for group in found.groups if group.kind in EDIT_KINDS]
    groups = [group.photos for group in found.groups]
    return Method(pairs, copies, groups, seconds, [group.kind for group in found.groups])


def hash_method(made: Sequence[Made], name: str, distance: int, progress: Progress) -> Method:
    """All pairs of photos whose perceptual hashes are close."""
    try:
        import imagehash
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("imagehash", "peers") from error
    start = process_time()
    bits = []
    for done, one in enumerate(made):
        progress(name, done, len(made))
        with Image.open(one.path) as image:
            bits.append(getattr(imagehash, name)(image).hash.ravel())
    hashes = np.array(bits).astype(np.int64)
    pairs: dict[Pair, tuple[str, Floats | None]] = {}
    for first, row in enumerate(hashes):
        close = np.flatnonzero((hashes[first + 1 :] != row).sum(1) <= distance) + first + 1
        for second in close.tolist():
            a, b = sorted((str(made[first].path), str(made[second].path)))
            pairs[a, b] = "copy", None
    groups = components(pairs)
    return Method(pairs, groups, groups, {"index": process_time() - start})


def components(pairs: Iterable[Pair]) -> list[list[str]]:
    """The connected components."""
    found: list[set[str]] = []
    for pair in pairs:
        joined = [group for group in found if not group.isdisjoint(pair)]
        found = [group for group in found if group not in joined]
        found.append(set(pair).union(*joined))
    return [sorted(group) for group in found]


def edit_row(edit: Edit, made: Sequence[Made], methods: Mapping[str, Method]) -> dict[str, Any]:
    """How many copies of one edit each method finds; see ``RULES``."""
    originals = {one.exposure: one for one in made if one.edit is None}
    copies = [one for one in made if one.edit is edit]
    row: dict[str, Any] = {"edit": edit.name, "kind": edit.kind, "copies": len(copies)}
    for name, method in methods.items():
        found, right, errors = 0, 0, []
        for copy in copies:
            original = originals[copy.exposure]
            a, b = sorted((str(original.path), str(copy.path)))
            kind, transform = method.pairs.get((a, b), (None, None))
            found += kind in EDIT_KINDS
            right += kind == edit.kind
            if transform is not None and kind in EDIT_KINDS:
                forward = transform if a == str(original.path) else inverse(transform)
                errors.append(corner_error(forward, copy, original.size))
        row[name] = found / max(len(copies), 1)
        if name == "hardnet":
            row["kind_right"] = right / max(len(copies), 1)
            row["map_error"] = 100 * float(np.median(errors)) if errors else None
    return row


def corner_error(transform: Floats, copy: Made, size: tuple[int, int]) -> float:
    """Largest error of a corner of the part that both photos show, over the longer side."""
    assert copy.transform is not None
    back = moved(corners(copy.size), inverse(copy.transform))
    within = np.clip(back, corners(size)[0], corners(size)[2])
    apart = moved(within, transform) - moved(within, copy.transform)
    return float(np.linalg.norm(apart, axis=1).max() / max(copy.size))


def method_row(name: str, method: Method, made: Sequence[Made]) -> dict[str, Any]:
    """What a method groups, rightly and wrongly; see ``RULES``."""
    known = {str(one.path): one for one in made}
    exposures = [{known[photo].exposure for photo in group} for group in method.copies]
    scenes = [{known[photo].scene for photo in group} for group in method.groups]
    wrong_copies, wrong = (sum(len(g) > 1 for g in each) for each in (exposures, scenes))
    swept = [
        {known[photo].scene if known[photo].shared else None for photo in group}
        for group in _panoramas(method)
    ]
    no_sweep = sum(len(scenes) > 1 or None in scenes for scenes in swept)
    groups_of: dict[str, set[int]] = {}
    for number, group in enumerate(method.groups):
        for photo in group:
            groups_of.setdefault(photo, set()).add(number)
    objects: dict[str, list[str]] = {}
    for one in made:
        if one.object_of:
            objects.setdefault(one.scene, []).append(str(one.path))
    pairs = [pair for four in objects.values() for pair in combinations(four, 2)]
    same = sum(bool(groups_of.get(a, set()) & groups_of.get(b, set())) for a, b in pairs)
    return {
        "method": name,
        "pairs": len(method.pairs),
        "groups": len(method.groups),
        "photos_in_groups": len(groups_of),
        "false_copies": wrong_copies,
        "false_copies_per_1000": 1000 * wrong_copies / len(made),
        "false_groups": wrong,
        "false_groups_per_1000": 1000 * wrong / len(made),
        "false_panoramas": no_sweep,
        "false_panoramas_per_1000": 1000 * no_sweep / len(made),
        "same_object": same / len(pairs) if pairs else None,
        "seconds": {stage: round(time, 1) for stage, time in method.seconds.items()},
    }


def sweep_rows(method: Method, made: Sequence[Made]) -> Iterator[dict[str, Any]]:
    """How many sweeps are one panorama, per share that neighbours have in common."""
    sweeps: dict[int, dict[str, list[str]]] = {}
    for one in made:
        if one.shared is not None:
            sweeps.setdefault(one.shared, {}).setdefault(one.scene, []).append(str(one.path))
    panoramas = _panoramas(method)
    for shared, each in sweeps.items():
        whole = [photos for photos in each.values() if photos in map(sorted, panoramas)]
        ordered = [p for p in whole if p in panoramas or p[::-1] in panoramas]
        yield {
            "shared": shared,
            "sweeps": len(each),
            "found": len(whole) / len(each),
            "ordered": len(ordered) / len(each),
        }


def _panoramas(method: Method) -> list[list[str]]:
    called = zip(method.groups, method.kinds or [""] * len(method.groups), strict=True)
    return [list(photos) for photos, kind in called if kind == "panorama"]


def scene_rows(method: Method, made: Sequence[Made]) -> Iterator[dict[str, Any]]:
    """The kinds of pairs among the exposures of each scene; objects are counted elsewhere."""
    scenes: dict[str, set[str]] = {}
    for one in made:
        if one.edit is None and one.object_of is None and one.shared is None:
            scenes.setdefault(one.scene, set()).add(str(one.path))
    for scene, photos in scenes.items():
        if len(photos) == 1:
            continue
        kinds = Counter(kind for pair, (kind, _) in method.pairs.items() if photos.issuperset(pair))
        joined = [
            (len(photos.intersection(g)), k)
            for g, k in zip(method.groups, method.kinds, strict=True)
        ]
        together, kind = max(joined, key=lambda one: one[0], default=(0, ""))
        yield {
            "scene": scene.removeprefix("scene-"),
            "photos": len(photos),
            "pairs": {kind: kinds[kind] for kind in KINDS if kinds[kind]},
            "together": together / len(photos) if together > 1 else 0.0,
            "group": kind if together > 1 else "-",
        }


def _mistakes(method: Method, made: Sequence[Made]) -> list[list[str]]:
    known = {str(one.path): one for one in made}
    out = []
    for (a, b), (kind, _) in method.pairs.items():
        one, other = known[a], known[b]
        copies = kind in EDIT_KINDS and one.exposure != other.exposure
        if copies or one.scene != other.scene:
            out.append([Path(a).stem, Path(b).stem, kind])
    return out


if __name__ == "__main__":
    run_script(main)
