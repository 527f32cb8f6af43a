"""Measurements on disk, so that a run that was interrupted goes on where it was.

One file of JSON lines per descriptor, detector and protocol, in the store of predictions. Its name
is a digest of all that can change a measurement: the descriptor's fingerprint, the source of this
package's pipeline, the versions of the libraries, the settings. Each line names the pair by the
content of its files. A line cut short by a kill is passed over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hardnet.descriptors import Descriptor
from hardnet.descriptors.digest import descriptor_digest, file_digest
from hardnet.errors import HardnetError
from hardnet.patchsets.cache import user_cache
from hardnet.patchsets.image_pairs import ImagePair
from hardnet.provenance import versions

_LIBRARIES = ("numpy", "opencv-python-headless", "opencv-contrib-python-headless", "pydegensac")
_JUDGES = ("measure", "curves", "epipolar")


class KeptRows:
    """The measurements of one descriptor with one detector and protocol.

    Args:
        folder: of the store.
        descriptor: what describes.
        about: the detector and the protocol, as JSON values.
    """

    def __init__(self, folder: Path | None, descriptor: Descriptor, about: Mapping[str, Any]):
        facts = dict(about) | {
            "descriptor": descriptor_digest(descriptor),
            "source": _source(),
            "versions": versions(_LIBRARIES),
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        store = folder if folder is not None else user_cache() / "predictions"
        self.path = store / "stereo" / f"{digest[:24]}.jsonl"
        self._rows = _read(self.path)

    def get(self, pair: ImagePair) -> dict[str, Any] | None:
        """The measurement of a pair, or None."""
        return self._rows.get(pair_digest(pair))

    def put(self, pair: ImagePair, measurement: dict[str, Any]) -> None:
        """Keep the measurement of a pair."""
        key = pair_digest(pair)
        self._rows[key] = measurement
        line = json.dumps({"pair": key, "measurement": measurement}) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                file.seek(0, 2)
                if file.tell():
                    file.seek(-1, 2)
                    if file.read(1) != b"\n":  # the last line was cut short: do not continue it
                        line = "\n" + line
                file.write(line.encode())
        except OSError as error:
            raise HardnetError(
                f"the store {self.path.parent} cannot be written ({error.strerror}): "
                "choose another with --store"
            ) from error


def pair_digest(pair: ImagePair) -> str:
    """Which pair it is, by the content of its images and its ground truth."""
    return _digest(pair.first, pair.second, *_truth_bytes(pair))


def _truth_bytes(pair: ImagePair) -> tuple[bytes, bytes]:
    both = (pair.homography, pair.correspondences)
    first, second = (b"" if array is None else array.tobytes() for array in both)
    return first, second


@cache
def _digest(first: Path, second: Path, homography: bytes, correspondences: bytes) -> str:
    digest = hashlib.sha256()
    for image in (first, second):
        try:
            digest.update(file_digest(image).encode())
        except OSError as error:
            raise HardnetError(f"{image} cannot be read: {error.strerror}") from error
    digest.update(homography + b"|" + correspondences)
    return digest.hexdigest()[:24]


@cache
def _source() -> str:
    """Digest of the code between an image and its measurement."""
    root = Path(__file__).parents[2]
    files = [root / f"{name}.py" for name in ("frames", "patches", "images", "features")]
    for folder in ("detectors", "matching"):
        files += sorted((root / folder).glob("*.py"))
    files += [root / "bench" / "stereo" / f"{name}.py" for name in ("run", *_JUDGES)]
    files += [root / "bench" / "real_pairs.py", root / "patchsets" / "sequences.py"]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return rows
    except OSError as error:
        raise HardnetError(
            f"the store {path.parent} cannot be read ({error.strerror}): "
            "choose another with --store"
        ) from error
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            rows[entry["pair"]] = entry["measurement"]
        except (ValueError, KeyError, TypeError):
            continue
    return rows
