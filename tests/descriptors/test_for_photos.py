"""Which form of a network describes photos: its windows, 32-bit floats or 8-bit integers."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

import hardnet
from hardnet.descriptors import PRECISION, for_photos, load, prefers_int8
from hardnet.errors import HardnetError

QUICK = {"keypoints": 60, "max_size": 200}


def test_the_variable_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRECISION, "int8")
    assert for_photos("hardnet") == "hardnet-int8@12+24+48"
    assert for_photos("hardnet-small") == "hardnet-small-int8@12+24+48"
    assert for_photos("hardnet-small@12+24") == "hardnet-small-int8@12+24"
    assert for_photos("rootsift@16") == "rootsift@16"
    monkeypatch.setenv(PRECISION, "float32")
    assert for_photos("hardnet") == "hardnet@12+24+48"
    assert for_photos("hardnet-int8") == "hardnet-int8@12+24+48"  # named so by a person
    monkeypatch.setenv(PRECISION, "int4")
    with pytest.raises(HardnetError, match=r"int4.*choose auto, float32 or int8"):
        for_photos("hardnet")


@pytest.mark.parametrize("text", ["", "auto"])
def test_otherwise_the_cpu_decides(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(PRECISION, text)
    network = "hardnet-int8" if prefers_int8() else "hardnet"
    assert for_photos("hardnet") == f"{network}@12+24+48"


def test_a_person_chooses_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRECISION, "float32")
    assert for_photos("hardnet@12") == "hardnet@12"
    assert for_photos("hardnet-small@12+24") == "hardnet-small@12+24"


def test_what_was_made_keeps_its_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRECISION, "float32")
    for form in ("hardnet", "hardnet-int8@12+24+48"):
        assert for_photos("hardnet", form) == form
        assert for_photos("hardnet@16", form) == "hardnet@16"


def test_what_has_one_form_keeps_it_and_a_name_is_loaded_literally(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PRECISION, "int8")
    for name in ("rootsift", "hardtfeat", "mine.onnx", "module:function"):
        assert for_photos(name) == name
    assert load("hardnet").name == "hardnet"


def test_photos_are_described_in_the_chosen_form(
    monkeypatch: pytest.MonkeyPatch, camera: np.ndarray, tmp_path: Path
) -> None:
    floats = hardnet.extract(camera, **QUICK)
    monkeypatch.setenv(PRECISION, "int8")
    integers = hardnet.extract(camera, **QUICK)
    assert [floats.descriptor, integers.descriptor] == [
        "hardnet-small@12+24+48",
        "hardnet-small-int8@12+24+48",
    ]
    assert (floats.descriptors * integers.descriptors).sum(1).min() > 0.9
    cv2.imwrite(str(tmp_path / "a.png"), camera)
    [(_, many)] = hardnet.extract_many([tmp_path / "a.png"], **QUICK)
    assert isinstance(many, hardnet.Features)
    assert many.descriptor == "hardnet-small-int8@12+24+48"
    # An image beside features is described as these were.
    assert hardnet.match(floats, camera, **QUICK).b.descriptor == "hardnet-small@12+24+48"
    large = hardnet.extract(camera, descriptor="hardnet@12+24", **QUICK)
    assert hardnet.match(large, camera, **QUICK).b.descriptor == "hardnet-int8@12+24"


def test_an_index_keeps_its_form(
    monkeypatch: pytest.MonkeyPatch, photos: Path, tmp_path: Path
) -> None:
    folder, few = tmp_path / "index", [photos / "camera.png", photos / "coins.png"]
    monkeypatch.setenv(PRECISION, "int8")
    hardnet.Index.build(folder, few[:1], words=20, **QUICK)
    monkeypatch.setenv(PRECISION, "float32")
    index = hardnet.Index.build(folder, few, words=20, **QUICK)  # continued
    assert index.settings.descriptor == "hardnet-small-int8@12"
    former = tmp_path / "former"
    hardnet.Index.build(former, few[:1], words=20, descriptor="hardnet-small@12+24", **QUICK)
    continued = hardnet.Index.build(former, few, words=20, **QUICK)
    assert continued.settings.descriptor == "hardnet-small@12+24"
    assert Path(index.search(few[1]).hits[0].path) == few[1]
