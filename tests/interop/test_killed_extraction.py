"""Extraction that is killed, or that runs into a full disk: nothing is broken, and it continues."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from hardnet.images import named_images, read_image, write_image
from hardnet.interop import feature_files
from hardnet.interop.extraction import ExtractionSettings, extract_to

SETTINGS = {"descriptor": "rootsift", "keypoints": 300, "max_size": 300}
SCRIPT = f"""
import sys, time
from pathlib import Path
from hardnet.interop import extraction, feature_files
from hardnet.images import named_images
real = feature_files._write
def slowly(*arguments):
    real(*arguments)
    arguments[0].flush()  # so that HDF5 is in the middle of something
    time.sleep(0.01)
feature_files._write = slowly
settings = extraction.ExtractionSettings(**{SETTINGS})
extraction.extract_to(Path(sys.argv[1]), named_images([Path(sys.argv[2])]), settings)
"""
COUNT = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """Parts of a photograph."""
    folder = tmp_path_factory.mktemp("photos")
    picture = read_image(photos / "astronaut.png")
    for k in range(COUNT):
        (folder / f"{k % 3}").mkdir(exist_ok=True)
        write_image(folder / f"{k % 3}" / f"{k}.png", picture[10 * k : 10 * k + 380])
    return folder


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> dict[str, bytes]:
    """What an extraction gives that nobody disturbs."""
    output = tmp_path_factory.mktemp("whole") / "x.h5"
    extract(output, folder)
    return datasets(output)


def extract(output: Path, folder: Path) -> None:
    extract_to(output, named_images([folder]), ExtractionSettings(**SETTINGS))


def datasets(path: Path) -> dict[str, bytes]:
    found = {}

    def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = np.asarray(item).tobytes() + str((item.dtype, item.shape)).encode()

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def start(output: Path, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SCRIPT, output, folder], stderr=subprocess.PIPE)


def kill_when(process: subprocess.Popen[bytes], reached: Callable[[], bool], wait: float) -> None:
    """kill -9 some seconds after something has happened."""
    deadline = time.monotonic() + 60
    while not reached() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(wait)
    process.kill()
    process.communicate()


def check(output: Path, expected: dict[str, bytes]) -> int:
    """Whatever is there is whole and right; the number of images."""
    parts = Path(f"{output}.parts")
    found: dict[str, bytes] = {}
    if output.exists():
        found = datasets(output)
        for name in feature_files.hdf5_names(output):
            assert len(feature_files.read_hdf5(output, name)) == 300
    assert found.items() <= expected.items()
    names = {name.rpartition("/")[0] for name in found}
    assert len(found) == 5 * len(names)
    for path in parts.rglob("*.npz"):
        features = feature_files.read_npz(path)
        name = path.relative_to(parts).as_posix().removesuffix(".npz")
        assert expected[f"{name}/frames"].startswith(features.frames.tobytes())
        names.add(name)
    return len(names)


def parts_of(output: Path) -> int:
    return len(list(Path(f"{output}.parts").rglob("*.npz")))


def is_packing(output: Path) -> bool:
    return any(Path(f"{output}.parts").glob(f"{output.name}.*.part"))


def test_killed_again_and_again_it_ends_as_if_nobody_had(
    folder: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    output, rng = tmp_path / "x.h5", random.Random(5)
    kept = 0
    for moment in (lambda: parts_of(output) >= 2, lambda: is_packing(output)):
        kill_when(start(output, folder), moment, rng.random() * 0.05)
        now = check(output, expected)
        assert now >= kept
        kept = now
    assert not output.exists()
    assert kept == COUNT  # the second one was killed while it wrote the HDF5 file
    extract(output, folder)
    assert datasets(output) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]


@pytest.mark.slow
def test_killed_while_it_adds_to_a_file(
    folder: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    output, some = tmp_path / "x.h5", tmp_path / "photos"
    shutil.copytree(folder, some)  # with the times of the files
    for name in ("0", "1"):
        shutil.rmtree(some / name)
    extract(output, some)
    before = datasets(output)
    kill_when(start(output, folder), lambda: is_packing(output), 0.02)
    assert datasets(output) == before
    assert check(output, expected) == COUNT
    extract(output, folder)
    assert datasets(output) == expected


def test_a_disk_that_is_full_while_hdf5_is_written(
    folder: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    """In a process of its own: HDF5 does not recover from it, and would crash later."""
    pytest.importorskip("resource")
    # No file may be larger than 1 MB: those of single images are smaller, that of all is not.
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))\n"
    output = tmp_path / "x.h5"
    last = "extraction.extract_to("
    script = limited + SCRIPT.replace(last, f"try:\n    {last}").rstrip()
    script += "\nexcept Exception as error:\n    print(type(error).__name__, error)\n"
    run = subprocess.run(
        [sys.executable, "-c", script, output, folder], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("HardnetError")
    assert "x.h5 cannot be written: File too large; what is described is kept in" in run.stdout
    assert len(run.stdout.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5.parts"]
    assert check(output, expected) == COUNT
    extract(output, folder)
    assert datasets(output) == expected


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_killed_at_any_moment(
    folder: Path, tmp_path: Path, expected: dict[str, bytes], seed: int
) -> None:
    output, rng, kept = tmp_path / "x.h5", random.Random(seed), 0
    for _ in range(5):
        process = start(output, folder)
        kill_when(process, lambda: True, 0.3 + rng.random() * 2.5)
        now = check(output, expected)
        assert now >= kept
        kept = now
    extract(output, folder)
    assert datasets(output) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]
