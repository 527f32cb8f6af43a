"""Extraction into files: what is kept, what is done again, what is refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

import hardnet
from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.images import named_images, write_image
from hardnet.interop import feature_files
from hardnet.interop.extraction import ExtractionSettings, extract_to
from hardnet.storage import FolderLock

SETTINGS = ExtractionSettings(descriptor="rootsift", keypoints=60, max_size=200)


@pytest.fixture
def folder(photos: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "deep" / "er").mkdir(parents=True)
    for name, to in {"camera.png": ".", "chelsea.png": "deep", "brick.png": "deep/er"}.items():
        shutil.copy(photos / name, folder / to)
    return folder


NAMES = ["camera.png", "deep/chelsea.png", "deep/er/brick.png"]


@pytest.fixture(params=["feats.h5", "feats"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


def read(output: Path, name: str) -> Features:
    if output.suffix == ".h5":
        return feature_files.read_hdf5(output, name)
    return feature_files.read_npz(output / f"{name}.npz")


def content(output: Path) -> dict[str, bytes]:
    """Every array and fact of an output but the times of the image files."""
    found: dict[str, bytes] = {}
    if output.suffix != ".h5":
        for path in output.rglob("*.npz"):
            with np.load(path) as file:
                name = path.relative_to(output).as_posix().removesuffix(".npz")
                found |= {f"{name}/{k}": file[k].tobytes() for k in file if k != "mtime_ns"}
        return found

    def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = np.asarray(item).tobytes()
        facts = {k: v for k, v in item.attrs.items() if k != "mtime_ns"}
        found.update({f"{name}@{k}": str(v).encode() for k, v in facts.items()})

    with h5py.File(output) as file:
        file.visititems(visit)
    return found


def run(output: Path, folder: Path, settings: ExtractionSettings = SETTINGS, **options: object):
    return extract_to(output, named_images([folder]), settings, **options)


def test_entries_are_what_extract_gives(folder: Path, output: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    report = run(output, folder, progress=lambda *step: steps.append(step))
    assert (report.described, report.unchanged, report.skipped) == (3, 0, {})
    assert report.keypoints == 180
    assert steps[:4] == [("describing", k, 3) for k in range(4)]
    for name in NAMES:
        back = read(output, name)
        direct = hardnet.extract(folder / name, "dog", "rootsift", 60, 200)
        for field in ("frames", "scores", "descriptors", "image_size", "descriptor", "scale"):
            np.testing.assert_array_equal(getattr(back, field), getattr(direct, field))
        assert back.path == str((folder / name).resolve())
    if output.suffix == ".h5":
        assert feature_files.hdf5_names(output) == NAMES
        assert sorted(p.name for p in output.parent.iterdir()) == ["feats.h5", "photos"]


def test_a_second_run_does_nothing_and_a_changed_file_is_done_again(
    folder: Path, output: Path
) -> None:
    run(output, folder)
    before, time_before = content(output), output.stat().st_mtime_ns
    report = run(output, folder)
    assert (report.described, report.unchanged) == (0, 3)
    assert content(output) == before
    if output.suffix == ".h5":
        assert output.stat().st_mtime_ns == time_before
    shutil.copy(folder / "camera.png", folder / "deep" / "chelsea.png")
    shutil.copy(folder / "camera.png", folder / "new.png")
    report = run(output, folder)
    assert (report.described, report.unchanged) == (2, 2)
    after = content(output)
    assert {k for k in before if before[k] != after[k]} >= {
        k for k in before if k.startswith("deep/chelsea.png") and k.endswith("descriptors")
    }
    assert {k: v for k, v in before.items() if "chelsea" not in k}.items() <= after.items()
    np.testing.assert_array_equal(
        read(output, "deep/chelsea.png").descriptors, read(output, "camera.png").descriptors
    )


def test_entries_of_images_that_are_not_named_stay(folder: Path, output: Path) -> None:
    run(output, folder)
    extra = folder.parent / "others"
    extra.mkdir()
    shutil.copy(folder / "camera.png", extra / "other.png")
    report = run(output, extra)
    assert (report.described, report.unchanged) == (1, 0)
    for name in ("other.png", *NAMES):
        assert len(read(output, name)) == 60


def test_other_settings_are_refused(folder: Path, output: Path) -> None:
    run(output, folder)
    before = content(output)
    for other, words in (
        ({"keypoints": 61}, "keypoints=60, not 61"),
        ({"max_size": None}, "max_size=200, not None"),
        ({"descriptor": "sift"}, "descriptor=rootsift, not sift"),
        ({"upright": True}, "upright=False, not True"),
        ({"spread": True}, "spread=False, not True"),
        ({"half": True}, "half=False, not True"),
    ):
        settings = replace(SETTINGS, **other)
        with pytest.raises(HardnetError, match=rf"{output.name} was made with {words}.*overwrite"):
            run(output, folder, settings)
        assert content(output) == before
        assert not Path(f"{output}.parts").exists()
    report = run(output, folder, settings, overwrite=True)
    assert report.described == 3
    assert content(output) != before


def test_other_weights_under_the_same_name_are_refused(folder: Path, tmp_path: Path) -> None:
    from hardnet.descriptors import WEIGHTS

    weights = tmp_path / "net.onnx"
    shutil.copy(WEIGHTS / "hardnet.onnx", weights)
    settings = ExtractionSettings(descriptor=str(weights), keypoints=5, max_size=100)
    run(tmp_path / "x.h5", folder, settings)
    assert run(tmp_path / "x.h5", folder, settings).unchanged == 3
    shutil.copy(WEIGHTS / "hardnet-int8.onnx", weights)
    with pytest.raises(HardnetError, match="other weights"):
        run(tmp_path / "x.h5", folder, settings)


def test_broken_images_are_skipped_and_tried_again(folder: Path, output: Path) -> None:
    good = (folder / "camera.png").read_bytes()
    (folder / "bad.png").write_bytes(good[:1000])
    report = run(output, folder)
    assert report.described == 3
    assert list(report.skipped) == ["bad.png"]
    assert "truncated" in report.skipped["bad.png"]
    with pytest.raises(HardnetError):
        read(output, "bad.png")
    (folder / "bad.png").write_bytes(good)
    report = run(output, folder)
    assert (report.described, report.unchanged, report.skipped) == (1, 3, {})
    read(output, "bad.png")
    # An image that was good and is broken now has no features: those of the old one are wrong.
    (folder / "bad.png").write_bytes(good[:2000])
    assert list(run(output, folder).skipped) == ["bad.png"]
    with pytest.raises(HardnetError):
        read(output, "bad.png")
    read(output, "camera.png")


def test_an_even_image_is_an_entry_without_keypoints(tmp_path: Path, output: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    write_image(folder / "even.png", np.full((50, 60), 99, np.uint8))
    assert run(output, folder).described == 1
    back = read(output, "even.png")
    assert (len(back), back.descriptors.shape, back.image_size) == (0, (0, 128), (60, 50))
    assert run(output, folder).unchanged == 1


def test_nothing_readable_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.png").write_text("words")
    report = run(tmp_path / "x.h5", folder)
    assert list(report.skipped) == ["a.png"]
    assert [p.name for p in tmp_path.iterdir()] == ["photos"]


def test_an_interrupted_overwrite_continues_and_keeps_the_old_file(
    folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "x.h5"
    run(output, folder)
    before = content(output)
    other = ExtractionSettings(descriptor="sift", keypoints=30, max_size=200)

    for stop_at in (1, 2):  # the same command again: what is done is not lost

        def stop(what: str, done: int, total: int, at: int = stop_at) -> None:
            if done == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(output, folder, other, overwrite=True, progress=stop, workers=1)
        assert content(output) == before
        assert len(list(tmp_path.glob("x.h5.parts/**/*.npz"))) == stop_at
    with pytest.raises(HardnetError, match=r"x.h5.parts was made with descriptor=sift"):
        run(output, folder)
    report = run(output, folder, other, overwrite=True)
    assert (report.described, report.unchanged) == (1, 2)
    assert {
        feature_files.read_hdf5(output, n).descriptor for n in feature_files.hdf5_names(output)
    } == {"sift"}
    assert not (tmp_path / "x.h5.parts").exists()


def test_two_writers_at_once_are_refused(folder: Path, output: Path) -> None:
    parts = Path(f"{output}.parts") if output.suffix == ".h5" else output
    parts.mkdir()
    lock = FolderLock(parts, "extract.lock")
    assert lock.take()
    try:
        with pytest.raises(HardnetError, match=f"another process is writing .*{output.name}"):
            run(output, folder)
    finally:
        lock.release()
    assert run(output, folder).described == 3
    assert not (parts / "extract.lock").exists()


@pytest.mark.parametrize("kind", ["hloc", "text", "folder", "npz", "foreign npz", "damaged state"])
def test_outputs_that_are_not_ours_are_refused(folder: Path, tmp_path: Path, kind: str) -> None:
    output = tmp_path / "x.h5"
    words = {"hloc": "not written by hardnet extract", "text": "not an HDF5 file"}.get(kind, "x")
    if kind == "hloc":
        with h5py.File(output, "w") as file:
            file["1.jpg/keypoints"] = np.zeros((0, 2))
    elif kind == "text":
        output.write_text("words")
    elif kind == "folder":
        output.mkdir()
        words = "is a folder"
    elif kind == "npz":
        output, words = tmp_path / "x.npz", "name a folder"
    else:
        output = tmp_path / "x"
        output.mkdir()
        np.savez(output / "a.npz", a=1)
        words = "somebody else"
        if kind == "damaged state":
            (output / "extract.json").write_text("{")
            words = "extract.json is in the way"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(HardnetError, match=words):
        run(output, folder)
    assert sorted(tmp_path.rglob("*")) == before


def test_overwrite_does_not_help_against_a_file_that_is_not_ours(
    folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "x"
    output.mkdir()
    (output / "extract.json").write_text("{}")
    with pytest.raises(HardnetError, match=r"extract\.json is in the way.*move it") as caught:
        run(output, folder, overwrite=True)
    assert "--overwrite" not in str(caught.value)
    assert (output / "extract.json").read_text() == "{}"


def test_pipes_and_loops_of_links_are_listed(folder: Path, output: Path) -> None:
    os.mkfifo(folder / "pipe.jpg")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "broken.jpg").symlink_to("nowhere.jpg")
    os.mkfifo(folder / "pipe")
    report = run(output, folder)
    assert sorted(report.skipped) == ["loop.jpg", "pipe.jpg"]
    assert "symbolic links" in report.skipped["loop.jpg"]
    assert "is a pipe" in report.skipped["pipe.jpg"]


def test_a_full_disk_is_said_and_what_was_done_is_kept(
    folder: Path, output: Path, small_disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    for name in NAMES[:2]:  # no keypoints: their files are small
        write_image(folder / name, np.full((50, 60), 99, np.uint8))
    words = r"File too large.*is kept in .*continues"
    with small_disk(10_000), pytest.raises(HardnetError, match=words):
        run(output, folder)
    parts = output if output.suffix != ".h5" else Path(f"{output}.parts")
    assert len(list(parts.rglob("*.npz"))) == 2
    assert not list(parts.rglob("*.part"))
    report = run(output, folder)
    assert (report.described, report.unchanged) == (1, 2)
    whole = output.with_name(f"whole{output.suffix}")
    run(whole, folder)
    assert content(output) == content(whole)


def test_a_damaged_part_is_done_again(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.h5"

    def stop(what: str, done: int, total: int) -> None:
        if what == "writing":
            raise HardnetError("x.h5 cannot be written: No space left on device")

    with pytest.raises(HardnetError, match=r"No space.*is kept in .*x\.h5\.parts"):
        run(output, folder, progress=stop)
    part = tmp_path / "x.h5.parts" / "camera.png.npz"
    part.write_bytes(part.read_bytes()[:500])
    report = run(output, folder)
    assert (report.described, report.unchanged) == (1, 2)
    assert feature_files.hdf5_names(output) == NAMES


def test_names(folder: Path, tmp_path: Path) -> None:
    images = named_images([folder, folder / "camera.png", folder / "deep" / "chelsea.png"])
    assert images == {
        **{name: folder / name for name in NAMES},
        "chelsea.png": folder / "deep" / "chelsea.png",
    }
    assert list(named_images([folder / "deep", folder])) == ["chelsea.png", "er/brick.png", *NAMES]
    second = tmp_path / "second"
    second.mkdir()
    shutil.copy(folder / "camera.png", second)
    with pytest.raises(HardnetError, match=r"photos/camera.png and .*second/camera.png .* both"):
        named_images([folder, second])
    os.remove(second / "camera.png")
    os.symlink(folder / "camera.png", second / "camera.png")
    assert len(named_images([folder, second])) == 3
    (second / "camera.png").unlink()
    (second / "camera.png").mkdir()
    shutil.copy(folder / "camera.png", second / "camera.png" / "x.png")
    with pytest.raises(HardnetError, match="lies inside the image"):
        named_images([folder, second])


def test_odd_names(photos: Path, tmp_path: Path, output: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    good = ["Fußgänger 猫 🐈.png", "a b & 'c' [d].png", "back\\slash.png", "x" * 200 + ".png"]
    for name in [*good, "y" * 250 + ".png", os.fsdecode(b"latin1 \xfc.png")]:
        try:
            shutil.copy(photos / "camera.png", folder / name)
        except OSError:
            pytest.skip("this file system does not take such names")
    report = run(output, folder)
    assert report.described == len(good)
    assert len(report.skipped) == 2
    reasons = " ".join(report.skipped.values())
    assert "too long a name" in reasons
    assert f"{folder}/latin1 \\udcfc.png is not a name in UTF-8" in reasons
    for name in good:
        assert len(read(output, name)) == 60
    json.dumps(report.skipped).encode()


@pytest.mark.parametrize("name", ["lock", "church.npz", "church.part", "settings"])
def test_photos_in_folders_with_names_of_our_files(photos: Path, output: Path, name: str) -> None:
    folder = output.parent / "photos"
    (folder / name).mkdir(parents=True)
    shutil.copy(photos / "camera.png", folder / name)
    for described in (1, 0):
        report = run(output, folder)
        assert (report.described, report.skipped) == (described, {})
    assert len(read(output, f"{name}/camera.png")) == 60


def test_a_photo_whose_place_in_the_output_is_taken_is_skipped(
    folder: Path, photos: Path, output: Path
) -> None:
    (folder / "extract.json").mkdir()
    shutil.copy(photos / "camera.png", folder / "extract.json")
    report = run(output, folder)
    assert report.described == 3
    assert list(report.skipped) == ["extract.json/camera.png"]
    assert "rename it, or its folder" in report.skipped["extract.json/camera.png"]
    assert [len(read(output, name)) for name in NAMES] == [60, 60, 60]


def test_a_file_of_a_version_that_did_not_spread_continues(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "features"
    run(output, folder)
    state = json.loads((output / "extract.json").read_text())
    del state["settings"]["spread"]
    (output / "extract.json").write_text(json.dumps(state))
    assert run(output, folder).unchanged == 3
    with pytest.raises(HardnetError, match="spread=False, not True"):
        run(output, folder, replace(SETTINGS, spread=True))
