from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from hardnet import detectors
from hardnet.detectors import affine, hessian
from hardnet.errors import HardnetError
from hardnet.frames import centres, cut_patches, from_similarity, pyramid, transform

Scene = Callable[..., Any]


@pytest.mark.parametrize(
    ("long", "short", "angle"),
    [(6, 6, 0), (9, 6, 0.5), (12, 6, 1.0), (15, 6, -0.7), (5, 2.5, 0.4), (30, 10, 1.2)],
)
def test_the_shape_of_an_elliptic_blob(
    blob: Scene, long: float, short: float, angle: float
) -> None:
    image = blob(150.3, 140.6, long, short, angle)
    frames, _ = affine.detect(image, 1, upright=True)
    directions, axes, _ = np.linalg.svd(frames[0, :, :2].astype(np.float64))
    assert axes[0] / axes[1] == pytest.approx(long / short, rel=0.05)
    if long > short:
        turn = np.arctan2(directions[1, 0], directions[0, 0]) - angle
        assert abs(np.sin(turn)) < 0.02
    # Half a window is six sigmas.
    np.testing.assert_allclose(axes / 6, [long, short], rtol=0.07)


def test_second_moments_equal_an_explicit_sum(camera: np.ndarray) -> None:
    side = affine._SIDE
    # A frame whose samples are whole pixels: central differences can be read off the image.
    frames = from_similarity([[200, 220]], side / 2, window=2.0)
    expected = np.zeros(3)
    for i in range(side):
        for j in range(side):
            y, x = 220 - side // 2 + i, 200 - side // 2 + j
            dx = float(camera[y, x + 1]) - float(camera[y, x - 1])
            dy = float(camera[y + 1, x]) - float(camera[y - 1, x])
            u, v = (2 * j + 1) / side - 1, (2 * i + 1) / side - 1
            weight = np.exp(-(u * u + v * v) / (2 * affine._WEIGHT**2))
            expected += weight * np.array([dx * dx, dx * dy, dy * dy])
    found = affine.second_moments(pyramid(camera, 8), frames)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4)


def test_reshaping_is_the_inverse_root() -> None:
    rng = np.random.default_rng(1)
    some = rng.normal(size=(20, 2, 2))
    moments = some @ some.swapaxes(1, 2)
    step, ratio = affine._reshaping(moments.reshape(-1, 4)[:, [0, 1, 3]])
    for matrix, m, r in zip(step.astype(np.float64), moments, ratio, strict=True):
        same = matrix @ m @ matrix
        np.testing.assert_allclose(same / same[0, 0], np.eye(2), atol=2e-4)
        assert np.linalg.det(matrix) == pytest.approx(1, rel=1e-4)
        values = np.linalg.eigvalsh(m)
        assert r == pytest.approx(np.sqrt(values[0] / values[1]), rel=1e-6)


def test_place_and_area_stay(camera: np.ndarray) -> None:
    frames = hessian.detect(camera, 500, upright=True)[0]
    shaped, settled = affine.adapt(camera, frames)
    assert settled.mean() > 0.85
    np.testing.assert_array_equal(centres(shaped), centres(frames))
    np.testing.assert_allclose(
        np.linalg.det(shaped[:, :, :2]), np.linalg.det(frames[:, :, :2]), rtol=1e-3
    )
    np.testing.assert_array_equal(shaped[:, 0, 1], 0)  # patch-up is image-up
    short, long = affine.axes(shaped[settled, :, :2])
    assert (long <= affine.MAX_STRETCH * short * 1.0001).all()


def test_shapes_follow_a_slanted_photograph(warped: Scene, camera: np.ndarray) -> None:
    smooth = cv2.GaussianBlur(camera, (0, 0), 1.0)
    slant = np.array([[0.55, 0.1], [0.0, 0.95]])
    second, matrix = warped(smooth, slant)
    a = hessian.detect(smooth, 400, upright=True)[0]
    a = a[np.linalg.norm(centres(a) - 255.5, axis=1) < 180]
    shaped, settled = affine.adapt(smooth, a)
    truth = transform(shaped, matrix)
    size = np.sqrt(np.linalg.det(truth[:, :, :2]))
    start = from_similarity(centres(truth), size, window=2.0)
    found, again = affine.adapt(second, start)
    both = settled & again
    assert both.mean() > 0.9

    def difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Log of the largest stretch between two shapes of equal area."""
        between = np.linalg.inv(one[:, :, :2].astype(float)) @ other[:, :, :2]
        return np.log(np.linalg.svd(between, compute_uv=False)[:, 0])

    before, after = difference(truth, start)[both], difference(truth, found)[both]
    assert np.median(after) < 0.08
    assert np.median(after) < np.median(before) / 3


def test_patches_without_gradients_do_not_settle() -> None:
    even = np.full((100, 100), 90, np.uint8)
    stripes = np.tile((np.arange(100) % 20 * 10).astype(np.uint8), (100, 1))
    frames = from_similarity([[50, 50]], 4.0)
    for image in (even, stripes):
        shaped, settled = affine.adapt(image, frames)
        assert not settled.any()
        assert np.isfinite(shaped).all()


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="needs hardnet[train]")


@pytest.fixture(scope="module")
def weights(data: Path, torch: Any) -> Path:
    """The folder of the published weights files."""
    folder = data.parent / "weights"
    if not (folder / "AffNet.pth").is_file() or not (folder / "OriNet.pth").is_file():
        pytest.skip(f"no AffNet.pth and OriNet.pth in {folder}")
    return folder


@pytest.fixture(scope="module")
def kornias(torch: Any, weights: Path) -> tuple[Any, Any]:
    """AffNet and OriNet of kornia with the published weights."""
    features = pytest.importorskip("kornia.feature", reason="needs hardnet[bench]")
    nets = features.LAFAffNetShapeEstimator(pretrained=False), features.OriNet(pretrained=False)
    for net, name in zip(nets, ("AffNet", "OriNet"), strict=True):
        content = torch.load(weights / f"{name}.pth", weights_only=True, map_location="cpu")
        net.eval().load_state_dict(content["state_dict"], strict=False)
    return nets


def test_the_nets_equal_kornias(
    torch: Any, weights: Path, kornias: tuple[Any, Any], camera: np.ndarray
) -> None:
    from hardnet.nets import load_weights
    from hardnet.nets.hardnet import AffNet, OriNet

    patches = cut_patches(camera, hessian.detect(camera, 64, upright=True)[0])
    inputs = torch.from_numpy(patches[:, None].astype(np.float32))
    affnet, orinet = kornias
    with torch.inference_mode():
        ours = load_weights(OriNet(), weights / "OriNet.pth").angles(inputs)
        # kornia counts angles counter-clockwise.
        turn = torch.exp(1j * (ours + orinet(inputs)))
        np.testing.assert_allclose(turn.numpy(), 1, atol=1e-3)
        x, y, z = affnet.features(affnet._normalize_input(inputs)).view(-1, 3).T
        shapes = load_weights(AffNet(), weights / "AffNet.pth").shapes(inputs).numpy()
    zero = np.zeros(len(x))
    expected = np.stack([1 + x.numpy(), zero, y.numpy(), 1 + z.numpy()], 1).reshape(-1, 2, 2)
    expected /= np.sqrt(np.linalg.det(expected))[:, None, None]
    np.testing.assert_allclose(shapes, expected, atol=1e-4)
    assert np.abs(shapes - np.eye(2)).max() > 0.2


def test_frames_equal_kornias_estimators(
    torch: Any, weights: Path, kornias: tuple[Any, Any], camera: np.ndarray
) -> None:
    """From the image to oriented affine frames, up to the two ways of cutting a patch."""
    from kornia.feature import LAFOrienter

    detector = detectors.load(f"affnet:{weights / 'AffNet.pth'},{weights / 'OriNet.pth'}")
    frames = hessian.detect(camera, 200, upright=True)[0]
    inner = (np.abs(frames[:, :, 2] - 255.5) + frames[:, :1, 0] < 250).all(1)
    frames = frames[inner]
    affnet, orinet = kornias
    image = torch.from_numpy(camera)[None, None].float() / 255
    with torch.inference_mode():
        shaped = affnet(torch.from_numpy(frames)[None], image)
        turned = LAFOrienter(32, angle_detector=orinet)(shaped, image)[0].numpy()
    ours = detector.orient(camera, detector.shape(camera, frames))  # type: ignore[attr-defined]
    between = np.linalg.inv(turned[:, :, :2]) @ ours[:, :, :2]
    stretch = np.linalg.svd(between, compute_uv=False)[:, 0]
    angle = np.rad2deg(np.arctan2(between[:, 1, 0], between[:, 0, 0]))
    assert np.median(stretch) < 1.05
    assert np.median(np.abs(angle)) < 4


@pytest.mark.parametrize("upright", [False, True])
def test_the_detector(weights: Path, camera: np.ndarray, upright: bool) -> None:
    for name in ("AffNet.pth", "AffNet.pth,OriNet.pth"):
        paths = ",".join(str(weights / part) for part in name.split(","))
        frames, scores = detectors.load(f"affnet:{paths}")(camera, 100, upright=upright)
        assert len(frames) == len(scores) > 90
        assert (np.diff(scores) <= 0).all()
        if upright:
            np.testing.assert_array_equal(frames[:, 0, 1], 0)


def test_missing_and_foreign_files_are_named(torch: Any, tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match=r"nothing\.pth"):
        detectors.load(f"affnet:{tmp_path / 'nothing.pth'}")
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(HardnetError, match=r"text\.pth cannot be read as a PyTorch state dict"):
        detectors.load(f"affnet:{tmp_path / 'text.pth'}")
    torch.save({"features.0.weight": torch.zeros(16, 1, 3, 3)}, tmp_path / "part.pth")
    with pytest.raises(HardnetError, match=r"part\.pth does not fit the network AffNet"):
        detectors.load(f"affnet:{tmp_path / 'part.pth'}")
    with pytest.raises(HardnetError, match="write affnet:"):
        detectors.load("affnet:")
