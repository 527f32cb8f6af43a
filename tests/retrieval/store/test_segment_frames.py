from __future__ import annotations

import numpy as np
import pytest

from hardnet import frames as frame
from hardnet.detectors import load
from hardnet.retrieval.store import segment
from hardnet.retrieval.store.segment import pack_frames, unpack_frames

STEP_OCTAVES = 14 / 256
STEP_STRETCH = 8 ** (1 / 15)
SIZE = (640, 480)


def parts(frames: np.ndarray) -> tuple[np.ndarray, ...]:
    """Half-size, angle of the rotation, ratio of the axes and direction of the long one, by SVD."""
    u, s, vt = np.linalg.svd(frames[:, :, :2].astype(np.float64))
    turn = u @ vt
    return (
        np.sqrt(s[:, 0] * s[:, 1]),
        np.arctan2(turn[:, 1, 0], turn[:, 0, 0]),
        s[:, 0] / s[:, 1],
        np.arctan2(u[:, 1, 0], u[:, 0, 0]),
    )


def difference(a: np.ndarray, b: np.ndarray, period: float) -> np.ndarray:
    return np.abs((a - b + period / 2) % period - period / 2)


def random_frames(count: int, stretch: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(0)
    xy = rng.uniform([-0.5, -0.5], [SIZE[0] - 0.5, SIZE[1] - 0.5], (count, 2))
    sigma = np.exp(rng.uniform(np.log(0.5), np.log(60), count))
    plain = frame.from_similarity(xy, sigma, rng.uniform(-7, 7, count))
    zero = np.zeros(count)
    ratio, axis = rng.uniform(0, np.log2(stretch), count), rng.uniform(0, np.pi, count)
    return frame.disturb(plain, np.zeros((count, 2)), zero, zero, ratio, axis)


def test_one_frame_by_hand() -> None:
    # 1 octave below the longer side, turned by a quarter; the middle of cell (2048, 1024).
    one = frame.from_similarity([[320.0 - 0.5, 160.0 - 0.5]], 640 / 2 / 6, np.pi / 2)
    packed = pack_frames(one, SIZE)
    assert packed.dtype == np.uint16
    size = int((-1 + 13) * 256 / 14)
    assert packed.tolist() == [[2048 << 4 | size >> 4, 1024 << 4 | size & 15, 64 << 8]]
    half = 640 * 2 ** ((size + 0.5) * 14 / 256 - 13)
    cell = 640 / 4096
    expected = [[0, -half, 319.5 + cell / 2], [half, 0, 159.5 + cell / 2]]
    np.testing.assert_allclose(unpack_frames(packed, SIZE)[0], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("stretch", [1.0, 8.0])
def test_error_is_bounded(stretch: float) -> None:
    frames = random_frames(5000, stretch)
    found = unpack_frames(pack_frames(frames, SIZE), SIZE)
    assert found.dtype == np.float32
    assert np.abs(found[:, :, 2] - frames[:, :, 2]).max() < 640 / 4096 / 2 + 1e-3
    (size, angle, ratio, axis), (size_b, angle_b, ratio_b, axis_b) = parts(frames), parts(found)
    assert np.abs(np.log2(size / size_b)).max() < STEP_OCTAVES / 2 + 1e-4
    assert difference(angle, angle_b, 2 * np.pi).max() < np.pi / 256 + 1e-4
    assert np.exp(np.abs(np.log(ratio / ratio_b))).max() < STEP_STRETCH**0.5 + 1e-3
    long = ratio_b > 1.1
    assert long.any() == (stretch > 1)
    assert difference(axis, axis_b, np.pi)[long].max(initial=0) < np.pi / 32 + 1e-3
    # Which is what a hypothesis sees of it: corners of the frame, in half-sizes.
    error = np.abs(found[:, :, :2] - frames[:, :, :2]).max((1, 2)) / size
    assert error.max() < (0.04 if stretch == 1 else 0.4)
    assert np.median(error) < (0.02 if stretch == 1 else 0.1)


@pytest.mark.parametrize("size", [SIZE, (480, 640), (100, 9000)])
def test_packing_what_was_unpacked_changes_nothing(size: tuple[int, int]) -> None:
    packed = pack_frames(random_frames(500, 6.0), size)
    np.testing.assert_array_equal(pack_frames(unpack_frames(packed, size), size), packed)


def test_sizes_of_several_images() -> None:
    packed = pack_frames(random_frames(3), SIZE)
    sizes = np.array([[640, 480], [64, 128], [10, 5]])
    each = [unpack_frames(packed[k : k + 1], sizes[k])[0] for k in range(3)]
    np.testing.assert_array_equal(unpack_frames(packed, sizes), each)


def test_a_mirrored_frame_loses_its_mirroring() -> None:
    frames = random_frames(100, 4.0)
    mirrored = frames.copy()
    mirrored[:, :, 1] *= -1
    assert (np.linalg.det(mirrored[:, :, :2]) < 0).all()
    np.testing.assert_array_equal(pack_frames(mirrored, SIZE), pack_frames(frames, SIZE))


def test_what_cannot_be_said_becomes_the_nearest() -> None:
    far = frame.from_similarity([[-50, 1e6]], 1.0)
    x, y = unpack_frames(pack_frames(far, SIZE), SIZE)[0, :, 2]
    assert (x, y) == pytest.approx((0.5 * 640 / 4096 - 0.5, 4095.5 * 640 / 4096 - 0.5), abs=1e-3)
    for sigma, octaves in ((1e-9, STEP_OCTAVES / 2), (1e9, segment.OCTAVES - STEP_OCTAVES / 2)):
        half = parts(
            unpack_frames(pack_frames(frame.from_similarity([[5, 5]], sigma), SIZE), SIZE)
        )[0][0]
        assert half == pytest.approx(2 ** (segment.SMALLEST + octaves) * 640, rel=1e-4)
    needle = np.array([[[100, 0, 5], [0, 0.01, 5]]], np.float32)
    size, angle, ratio, axis = parts(unpack_frames(pack_frames(needle, SIZE), SIZE))
    assert (size[0], ratio[0]) == (pytest.approx(1, rel=0.02), pytest.approx(8, rel=1e-3))
    assert (angle[0], axis[0] % np.pi) == (pytest.approx(0, abs=1e-3), pytest.approx(0, abs=1e-3))
    nothing = np.zeros((1, 2, 3), np.float32)
    assert np.isfinite(unpack_frames(pack_frames(nothing, SIZE), SIZE)).all()


def test_no_frames() -> None:
    assert pack_frames(frame.empty_frames(), SIZE).shape == (0, 3)
    assert unpack_frames(np.zeros((0, 3), np.uint16), SIZE).shape == (0, 2, 3)
    assert unpack_frames(np.zeros((0, 3), np.uint16), np.zeros((0, 2))).shape == (0, 2, 3)


def test_frames_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        pack_frames(np.full((1, 2, 3), np.nan, np.float32), SIZE)


def test_frames_of_dog(camera: np.ndarray) -> None:
    frames, _ = load("dog")(camera, 500)
    found = unpack_frames(pack_frames(frames, (512, 512)), (512, 512))
    assert len(frames) > 300
    assert np.abs(found[:, :, 2] - frames[:, :, 2]).max() < 512 / 8192 + 1e-3
    size = parts(frames)[0]
    error = np.abs(found[:, :, :2] - frames[:, :, :2]).max((1, 2)) / size
    assert error.max() < 0.04


def test_frames_of_hessian_affine(camera: np.ndarray) -> None:
    frames, _ = load("hessian-affine")(camera, 300)
    found = unpack_frames(pack_frames(frames, (512, 512)), (512, 512))
    size, _, ratio, _ = parts(frames)
    assert ratio.max() > 2
    size_b, _, ratio_b, _ = parts(found)
    assert np.abs(np.log2(size / size_b)).max() < STEP_OCTAVES / 2 + 1e-3
    assert np.exp(np.abs(np.log(ratio / ratio_b))).max() < STEP_STRETCH**0.5 + 1e-2
    error = np.abs(found[:, :, :2] - frames[:, :, :2]).max((1, 2)) / size
    assert error.max() < 0.35
    assert np.median(error) < 0.1
