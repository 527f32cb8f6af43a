import hashlib

import cv2
import numpy as np
import pytest

from hardnet.bench.retrieval.features import (
    BenchPhoto,
    check_names,
    crops,
    images_of,
    resized,
    split,
    usual_size,
    windows,
)
from hardnet.errors import HardnetError
from hardnet.images import read_image, to_grey


def test_windows_computed_by_hand():
    # 960 x 640 and photos of 320 x 240: the middle is 853 x 640, that of a quarter 426 x 320.
    whole, first, second, third, last = windows(960, 640, (320, 240))
    assert whole == (53, 0, 853, 640)
    assert first == (27, 0, 426, 320)
    assert second == (480 + 27, 0, 426, 320)
    assert third == (27, 320, 426, 320)
    assert last == (480 + 27, 320, 426, 320)


def test_windows_smaller_than_the_photos_are_left_out():
    assert windows(500, 400, (320, 240))[1:] == [None] * 4
    assert windows(300, 400, (320, 240)) == [None] * 5


def test_pixels_of_a_crop_are_those_of_the_window(photos):
    path = photos / "coffee.png"
    grey = to_grey(read_image(path))
    photo = BenchPhoto("x", path, (10, 20, 320, 240), (320, 240))
    np.testing.assert_array_equal(photo.pixels(), grey[20:260, 10:330])
    half = BenchPhoto("x", path, (10, 20, 320, 240), (160, 120)).pixels()
    np.testing.assert_allclose(
        half, grey[20:260, 10:330].reshape(120, 2, 160, 2).mean((1, 3)), atol=0.51
    )


def test_photos_are_brought_to_one_size_up_and_down(photos):
    grey = to_grey(read_image(photos / "coffee.png"))  # 600 x 400
    assert resized(grey, 900).shape == (600, 900)
    assert resized(grey, 300).shape == (200, 300)
    assert resized(grey, 600) is grey
    assert resized(grey, None) is grey
    back = cv2.resize(resized(grey, 1200), (600, 400), interpolation=cv2.INTER_AREA)
    assert np.abs(back.astype(int) - grey).mean() < 2


def test_what_it_is_about_changes_with_the_file_and_what_is_done_to_it(tmp_path, photos):
    path = tmp_path / "a.png"
    path.write_bytes((photos / "coffee.png").read_bytes())
    key = BenchPhoto("a", path).about()
    assert BenchPhoto("b", path).about() == key
    assert BenchPhoto("a", path, longer_side=640).about() != key
    assert BenchPhoto("a", path, (0, 0, 9, 9)).about() != key
    path.write_bytes((photos / "chelsea.png").read_bytes())
    assert BenchPhoto("a", path).about() != key


def test_crops_come_in_an_order_that_mixes_the_photos(photos, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    named = [(name, photos / name) for name in ("coffee.png", "astronaut.png", "chelsea.png")]
    cut = crops([*named, ("broken.png", tmp_path / "broken.png")], (160, 120), 320)
    assert len(cut) == 15  # five each, none of the broken one
    order = [hashlib.sha256(photo.name.encode()).digest() for photo in cut]
    assert order == sorted(order)
    assert {photo.name.partition("#")[2] for photo in cut} == set("01234")
    assert all(photo.pixels().shape == (240, 320) for photo in cut)


def test_shared_files_go_to_one_side_only(photos):
    both = images_of([photos])
    assert both[0][0].startswith("data/")
    one = both[:10]
    vocabulary, distractors = split(both, both)
    assert vocabulary
    assert distractors
    assert len(vocabulary) + len(distractors) == len(both)
    assert not {p for _, p in vocabulary} & {p for _, p in distractors}
    assert split(both[10:], one) == (both[10:], one)  # nothing is shared
    name = vocabulary[0][1].name
    assert int(hashlib.sha256(name.encode()).hexdigest()[-1], 16) % 2 == 0


def test_usual_size_and_names(photos):
    files = [photos / "astronaut.png", photos / "coffee.png", photos / "camera.png"]
    assert usual_size(files) == (512, 512)
    with pytest.raises(HardnetError, match="both called a"):
        check_names(
            [BenchPhoto("a", files[0]), BenchPhoto("b", files[1]), BenchPhoto("a", files[2])]
        )
