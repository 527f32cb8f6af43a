"""From an image to features: detect frames, cut patches, describe them; and features in a file.

:func:`extract` does all of it. A pipeline may run its stages on different threads:
:func:`prepare` reads the image, :func:`find` detects frames, :meth:`Found.patches` cuts their
patches and :func:`describe` makes the features.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import repeat
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet import descriptors, detectors
from hardnet.detectors import Detector
from hardnet.errors import HardnetError, InputError, counted
from hardnet.frames import (
    Detected,
    Frames,
    centres,
    check_frames,
    cut_for,
    empty_frames,
    from_opencv,
    from_similarity,
    read_oxford,
    rescale,
    windows_of,
)
from hardnet.image_files import as_path, require_regular_file
from hardnet.images import Pixels, Source, as_array, read_image, shrink, to_grey
from hardnet.storage import OwnedFolder, replacing

if TYPE_CHECKING:
    from hardnet.descriptors import Descriptor, Descriptors

GivenFrames = NDArray[Any] | Sequence[cv2.KeyPoint] | str | os.PathLike[str]
"""(N, 2, 3) frames, OpenCV's keypoints, or the path of an Oxford ellipse file."""

Orientation = Literal["auto", "upright", "dominant"]
"""Which way up patches are: as the image, or by the dominant gradient of each; "auto" for upright
patches and, where these do not match, dominant ones."""

KEYPOINTS = 2048  # how many keypoints are kept by default
MOST_KEYPOINTS = 2**31 - 1  # OpenCV counts in 32 bits
MAX_SIZE = 1600  # longer side, in pixels, to which larger images are shrunk by default


@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """The described keypoints of one image, strongest first, in pixels of the upright original.

    Attributes:
        frames: (N, 2, 3).
        scores: (N,) detector response.
        descriptors: (N, D) float32, or (N, B) uint8 packed bits.
        image_size: (width, height) of the image.
        descriptor: name of the descriptor that made ``descriptors``.
        weights: digest of the weights of that descriptor; empty if it has none or they are unknown.
        scale: by how much the image was shrunk before detection.
        path: the file, or None if the image was an array.
        pixels: the image if it was an array, None if it can be read from ``path``.
        seconds: time per stage.
        orientation: "upright" or "dominant": which way up the patches were.
        turned: describes the image again, with dominant orientations; only after
            ``orientation="auto"``, and not in a copy.
    """

    frames: Frames
    scores: NDArray[np.float32]
    descriptors: Descriptors
    image_size: tuple[int, int]
    descriptor: str
    scale: float = 1.0
    path: str | None = None
    pixels: Pixels | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    orientation: Orientation = "dominant"
    turned: Callable[[], Features] | None = None
    weights: str = ""

    def __len__(self) -> int:
        return len(self.frames)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"turned": None}  # it holds the network, which is not pickled

    def __repr__(self) -> str:
        width, height = self.image_size
        dim = self.descriptors.shape[1]
        size = f"{8 * dim} bits" if self.descriptors.dtype == np.uint8 else f"{dim}-D"
        image = f"{self.image_name} ({width} x {height})"
        return f"Features: {counted(len(self), 'keypoint')} of {image}, {self.descriptor} {size}"

    @property
    def image_name(self) -> str:
        return "an array" if self.path is None else Path(self.path).name

    @property
    def xy(self) -> NDArray[np.float32]:
        """(N, 2) positions of the keypoints."""
        return centres(self.frames)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file (.npz) that is either whole or not there, for :meth:`load`.

        The image itself is not kept, only where it was, seen from the folder of the file.
        """
        path = as_path(path)
        try:
            write_entry(path, to_entry(self, path.parent))
        except OSError as error:
            raise HardnetError(f"{path} cannot be written: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Features:
        """Features of a file; the path of the image is None if it is gone."""
        path = as_path(path)
        name = path.name.removesuffix(NPZ)
        return from_entry(read_entry(path), path.parent, str(path), descriptor=name)

    def read_pixels(self) -> Pixels:
        """The image the features come from, (H, W) grey or (H, W, 3) RGB."""
        if self.pixels is not None:
            return self.pixels
        if self.path is None:
            raise HardnetError("these features keep neither their image nor its path")
        return read_image(self.path)


@dataclass(frozen=True)
class DescribeSettings:
    """How images are described: the arguments of :func:`extract`, checked."""

    detector: str | Detector = "dog"
    descriptor: str | Descriptor = descriptors.DEFAULT
    keypoints: int = KEYPOINTS
    max_size: int | None = MAX_SIZE
    orientation: Orientation = "dominant"
    upright: bool = False
    spread: bool = False

    def __post_init__(self) -> None:
        check_settings(self.keypoints, self.max_size)
        if (way := self.orientation) not in get_args(Orientation):
            raise InputError(f"no orientation '{way}': choose auto, upright or dominant")

    def load_detector(self) -> Detector:
        return detectors.load(self.detector, self.spread)

    def load_descriptor(self) -> Descriptor:
        """The descriptor, in the form that describes photos best on this CPU."""
        if isinstance(self.descriptor, str):
            return descriptors.load(descriptors.for_photos(self.descriptor))
        return self.descriptor


def check_settings(keypoints: int, max_size: int | None) -> None:
    """Raise an InputError if an image cannot be described like this."""
    if isinstance(keypoints, bool) or not isinstance(keypoints, int | np.integer):
        raise InputError(f"keypoints is {keypoints!r}: give a whole number")
    if not 1 <= keypoints <= MOST_KEYPOINTS:
        raise InputError(f"keypoints is {keypoints}: ask for 1 to {MOST_KEYPOINTS}")
    if max_size is not None and max_size < 1:
        raise InputError(f"max_size is {max_size}: give a size in pixels, or None")


def extract(
    image: Source,
    detector: str | Detector = "dog",
    descriptor: str | Descriptor = descriptors.DEFAULT,
    keypoints: int = KEYPOINTS,
    max_size: int | None = MAX_SIZE,
    *,
    orientation: Orientation = "dominant",
    upright: bool = False,
    spread: bool = False,
    frames: GivenFrames | None = None,
) -> Features:
    """Detect and describe the keypoints of an image, or describe the frames you have.

    Args:
        image: path, array (grey or RGB), or Pillow image.
        detector: name of a detector, or a Detector.
        descriptor: name of a descriptor, a weights file, or a Descriptor.
        keypoints: how many are kept at most, the strongest.
        max_size: shrink the image to a longer side of at most this before detection (the results
            are in pixels of the original all the same); None for never.
        orientation: "dominant" turns each frame by what it sees, so that a turned photo has the
            same features; "upright" turns none, which distinguishes more keypoints if photos are
            the right way up; "auto" lets :func:`hardnet.match` decide for each pair.
        upright: short for ``orientation="upright"``.
        spread: keep keypoints all over the image; see :mod:`hardnet.detectors`.
        frames: described instead of detecting any: (N, 2, 3) frames, OpenCV's keypoints, or the
            path of an Oxford ellipse file, in pixels of the original. Their order is kept and
            none is dropped; ``detector`` and ``keypoints`` do not matter.

    Returns:
        Features; none at all (N = 0) for an image without structure.
    """
    how = DescribeSettings(detector, descriptor, keypoints, max_size, orientation, upright, spread)
    return extract_together([image], how, frames)[0]


def extract_together(
    images: Sequence[Source], how: DescribeSettings, frames: GivenFrames | None = None
) -> list[Features]:
    """The features of one or a few images, the same as calls of :func:`extract` but sooner.

    They are read and detected at the same time, while the network is loaded; describing keeps all
    cores busy by itself. Their ``seconds`` overlap, and only those of the first have the loading,
    which is done once.
    """
    detector = how.load_detector()
    either = how.orientation == "auto" and not how.upright
    upright = how.orientation != "dominant" or how.upright

    def look(image: Source) -> Found:
        prepared = prepare(image, how.max_size)
        return find(prepared, detector, how.keypoints, upright, frames, either)

    with ThreadPoolExecutor(len(images)) as pool:  # OpenCV releases the GIL
        looks = [pool.submit(look, image) for image in images]
        start = perf_counter()
        descriptor = how.load_descriptor()
        loading = perf_counter() - start
        every = [one.result() for one in looks]
        list(pool.map(Found.patches, every, repeat(descriptor)))
    described = []
    for found in every:
        features = describe(found, descriptor)
        features = replace(features, seconds={"load": loading} | features.seconds)
        if found.turned is not None:
            features = _turnable(features, found.prepared, found.turned, descriptor, how.keypoints)
        described.append(features)
        loading = 0.0  # once for all
    return described


@dataclass(frozen=True, eq=False)
class Prepared:
    """An image, ready for detection: grey, width and height multiplied by the factors."""

    grey: Pixels
    factors: tuple[float, float]
    image_size: tuple[int, int]
    path: str | None
    pixels: Pixels | None
    seconds: dict[str, float]


def prepare(image: Source, max_size: int | None = MAX_SIZE) -> Prepared:
    """Read an image, make it grey and shrink it; see :func:`extract`."""
    start = perf_counter()
    pixels = read_image(image)
    grey, factors = shrink(to_grey(pixels), max_size)
    is_array = as_array(image) is not None
    return Prepared(
        grey=grey,
        factors=factors,
        image_size=(pixels.shape[1], pixels.shape[0]),
        path=None if is_array else os.fspath(image),  # type: ignore[arg-type]
        pixels=pixels if is_array else None,
        seconds={"read": perf_counter() - start},
    )


@dataclass(frozen=True, eq=False)
class Found:
    """The keypoints of an image, ready to be described."""

    prepared: Prepared
    frames: Frames  # in pixels of the original
    shrunk: Frames  # the same in pixels of the shrunk image
    scores: NDArray[np.float32]
    seconds: dict[str, float]
    upright: bool
    turned: Callable[..., Detected] | None  # detects the same with dominant orientations
    cut: dict[tuple[float, ...], NDArray[np.uint8]] = field(default_factory=dict)

    def patches(self, descriptor: Descriptor) -> NDArray[np.uint8]:
        """(N, S, S) or (N, K, S, S), as the descriptor reads them; kept for others like it."""
        start, wanted = perf_counter(), windows_of(descriptor)
        if wanted not in self.cut:
            self.cut[wanted] = cut_for(descriptor, self.prepared.grey, self.shrunk)
            self.seconds["cut"] = perf_counter() - start
        return self.cut[wanted]


def find(
    prepared: Prepared,
    detector: Detector,
    keypoints: int = KEYPOINTS,
    upright: bool = False,
    frames: GivenFrames | None = None,
    turnable: bool = False,
) -> Found:
    """Detect frames, or take those given; ``turnable`` upright ones may be turned later."""
    start = perf_counter()
    turned = None
    if frames is not None:
        if upright:
            raise InputError("frames are described as they are: leave upright out, or frames")
        original, scores = _given_frames(frames)
        shrunk = rescale(original, prepared.factors)
    else:
        if turnable:
            (shrunk, scores), turned = detectors.find_both(detector, prepared.grey, keypoints)
        else:
            shrunk, scores = detectors.call(detector, prepared.grey, keypoints, upright)
        fx, fy = prepared.factors
        original = rescale(shrunk, (1 / fx, 1 / fy))
    seconds = prepared.seconds | {"detect": perf_counter() - start}
    return Found(prepared, original, shrunk, scores, seconds, upright, turned)


def describe(found: Found, descriptor: Descriptor) -> Features:
    """Describe the keypoints that were found; see :func:`extract`."""
    patches, prepared = found.patches(descriptor), found.prepared
    start = perf_counter()
    empty = np.zeros((0, descriptor.dim), np.float32)
    vectors = descriptor(patches) if len(patches) else empty
    return Features(
        frames=found.frames,
        scores=found.scores,
        descriptors=vectors,
        image_size=prepared.image_size,
        descriptor=descriptor.name,
        scale=float(np.sqrt(prepared.factors[0] * prepared.factors[1])),
        path=prepared.path,
        pixels=prepared.pixels,
        seconds=found.seconds | {"describe": perf_counter() - start},
        orientation="upright" if found.upright else "dominant",
        weights=getattr(descriptor, "digest", ""),
    )


def _turnable(
    features: Features,
    prepared: Prepared,
    detector: Detector,
    descriptor: Descriptor,
    keypoints: int,
) -> Features:
    @cache
    def turned() -> Features:
        again = describe(find(prepared, detector, keypoints), descriptor)
        spent = {
            stage: features.seconds[stage] + time
            for stage, time in again.seconds.items()
            if stage not in prepared.seconds
        }
        return replace(again, seconds=features.seconds | spent)

    return replace(features, turned=turned)


def _given_frames(frames: GivenFrames) -> Detected:
    """All (N, 2, 3) frames in their order, and (N,) the response of keypoints, 0 for all else."""
    if isinstance(frames, str | os.PathLike):
        checked = read_oxford(frames)
    elif len(frames) and isinstance(frames[0], cv2.KeyPoint):
        response = np.array([keypoint.response for keypoint in frames], np.float32)
        return check_frames(from_opencv(frames)), response  # type: ignore[arg-type]
    else:
        checked = check_frames(frames) if len(frames) else empty_frames()  # type: ignore[arg-type]
    return checked, np.zeros(len(checked), np.float32)


SIGMA = 1.0
"""Pixels: the scale of keypoints from files that hold positions only, such as those of hloc."""

ARRAYS = ("keypoints", "descriptors", "scores", "image_size", "frames")
FACTS = ("descriptor", "weights", "scale", "orientation", "path", "bytes", "mtime_ns")
NPZ = ".npz"

Entry = dict[str, Any]
"""What a file has of one image: arrays and facts, which are single values, by name."""

NO_FEATURES = (
    *(ValueError, LookupError, TypeError, AttributeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error),
)
"""What reading a file raises if it does not hold features."""

MAX_ENTRY_BYTES = 4 << 30
"""Limit for the arrays of one image: a header of a few bytes can claim any size."""


def to_entry(
    features: Features, folder: Path, half: bool = False, state: Mapping[str, int] | None = None
) -> Entry:
    """The entry of ``features`` in a file of ``folder``.

    The path of the image is kept relative to the folder, so that a project can be moved as a whole.
    ``half`` keeps descriptors as float16, three digits; ``state`` (size and time of the image file)
    tells later that it was changed.
    """
    entry: Entry = {"descriptor": features.descriptor, "scale": features.scale}
    if features.weights:
        entry["weights"] = features.weights
    if features.orientation == "upright":
        entry["orientation"] = "upright"
    if features.path is not None:
        image = os.path.abspath(features.path)
        with suppress(ValueError):  # Windows: another drive
            image = os.path.relpath(image, os.path.realpath(folder))
        entry["path"] = Path(image).as_posix()
    descriptors = np.ascontiguousarray(features.descriptors.T)
    if half and descriptors.dtype != np.uint8:
        descriptors = descriptors.astype(np.float16)
    return {
        **entry,
        **(state or {}),
        "keypoints": features.xy,
        "descriptors": descriptors,
        "scores": features.scores,
        "image_size": np.array(features.image_size, np.int64),
        "frames": features.frames,
    }


def from_entry(entry: Entry, folder: Path, where: str, descriptor: str) -> Features:
    """The features of an entry, checked; the inverse of :func:`to_entry`.

    Errors call the entry ``where``; ``descriptor`` is its descriptor if it does not say it.
    """
    for name in ("keypoints", "descriptors", "image_size"):
        if name not in entry:
            raise HardnetError(f"{where} has no {name}: it does not hold local features")
    try:
        for name in ARRAYS:
            if name in entry and entry[name].dtype.kind not in "fiu":
                raise ValueError(f"its {name} are no numbers, but {entry[name].dtype}")
        if entry["descriptors"].ndim != 2:
            raise ValueError(f"its descriptors have the shape {entry['descriptors'].shape}")
        xy = entry["keypoints"].astype(np.float32).reshape(-1, 2)
        vectors = np.ascontiguousarray(entry["descriptors"].T)
        if vectors.dtype != np.uint8:
            vectors = vectors.astype(np.float32, copy=False)
        scores = entry.get("scores", np.zeros(len(xy))).astype(np.float32, copy=False)
        frames = check_frames(entry["frames"]) if "frames" in entry else from_similarity(xy, SIGMA)
        if scores.ndim != 1 or not np.isfinite(xy).all():
            raise ValueError("its keypoints have no place or no score")
        if vectors.dtype != np.uint8 and not np.isfinite(vectors).all():
            raise ValueError("its descriptors contain NaN or infinity")
        if not len(xy) == len(frames) == len(vectors) == len(scores):
            counts = {"keypoint": xy, "frame": frames, "descriptor": vectors, "score": scores}
            raise ValueError(", ".join(counted(len(rows), what) for what, rows in counts.items()))
        width, height = (int(side) for side in entry["image_size"])
        scale = float(entry.get("scale", 1.0))
        if min(width, height) < 1 or not 0 < scale < float("inf"):
            raise ValueError(f"an image of {width}x{height} pixels at scale {scale}")
    except NO_FEATURES as error:
        raise HardnetError(f"{where} is damaged: {first_line(error)}") from error
    image = os.path.normpath(os.path.join(os.path.realpath(folder), str(entry.get("path", ""))))
    return Features(
        frames,
        scores,
        vectors,
        (width, height),
        descriptor=str(entry.get("descriptor", descriptor)),
        scale=scale,
        path=image if os.path.isfile(image) else None,  # None if it is no longer there
        orientation="upright" if entry.get("orientation") == "upright" else "dominant",
        weights=str(entry.get("weights", "")),
    )


def write_entry(path: Path, entry: Entry, owned: OwnedFolder | None = None) -> None:
    """Write an npz file; raises OSError if the disk does not take it.

    ``owned`` is the folder of the file; see :func:`hardnet.storage.replacing`.
    """
    with replacing(path, owned) as part, part.open("wb") as stream:
        np.savez(stream, **entry)


def read_entry(path: Path, names: tuple[str, ...] = ARRAYS + FACTS) -> Entry:
    """Read an npz file, or only what is called ``names``."""
    try:
        require_regular_file(path)
        if not zipfile.is_zipfile(path):  # numpy would advise loading it as a pickle: unsafe
            raise ValueError("it is not an npz file")
        with np.load(path, allow_pickle=False) as file:
            refuse_large(path, sum(entry.file_size for entry in file.zip.infolist()))
            return {n: file[n].item() if n in FACTS else file[n] for n in names if n in file}
    except FileNotFoundError as error:
        raise HardnetError(f"{path} does not exist: check the path") from error
    except (OSError, MemoryError, EOFError, NotImplementedError, *NO_FEATURES) as error:
        raise HardnetError(
            f"{path} is damaged or holds no features of one image: {first_line(error)}"
        ) from error


def refuse_large(path: str | os.PathLike[str], size: int) -> None:
    """Raise if the arrays of one image in a file would take more memory than any image needs."""
    if size > MAX_ENTRY_BYTES:
        raise HardnetError(f"{path} claims {size / 10**9:.0f} GB of features of one image")


def first_line(error: BaseException) -> str:
    """An error in one line."""
    return (str(error) or type(error).__name__).partition("\n")[0]
