from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hardnet import detectors
from hardnet.detectors import hessian
from hardnet.errors import HardnetError
from hardnet.patches import cut_patches

torch = pytest.importorskip("torch", reason="needs hardnet[train]")


@pytest.fixture(scope="module")
def weights(data: Path) -> Path:
    """The folder of the published weights files."""
    folder = data.parent / "weights"
    if not (folder / "AffNet.pth").is_file() or not (folder / "OriNet.pth").is_file():
        pytest.skip(f"no AffNet.pth and OriNet.pth in {folder}")
    return folder


@pytest.fixture
def patches(camera: np.ndarray) -> np.ndarray:
    return cut_patches(camera, hessian.detect(camera, 64, upright=True)[0])


def test_the_nets_equal_kornias(weights: Path, patches: np.ndarray) -> None:
    features = pytest.importorskip("kornia.feature", reason="needs hardnet[bench]")
    from hardnet.nets.frame_nets import load_affnet, load_orinet

    inputs = torch.from_numpy(patches[:, None].astype(np.float32))
    theirs = features.OriNet(pretrained=False).eval()
    state = torch.load(weights / "OriNet.pth", weights_only=True, map_location="cpu")["state_dict"]
    theirs.load_state_dict(state, strict=False)
    shape_net = features.LAFAffNetShapeEstimator(pretrained=False).eval()
    state = torch.load(weights / "AffNet.pth", weights_only=True, map_location="cpu")["state_dict"]
    shape_net.load_state_dict(state, strict=False)
    with torch.inference_mode():
        ours = load_orinet(weights / "OriNet.pth").angles(inputs)
        # kornia counts angles counter-clockwise.
        turn = torch.exp(1j * (ours + theirs(inputs)))
        np.testing.assert_allclose(turn.numpy(), 1, atol=1e-3)
        x, y, z = shape_net.features(shape_net._normalize_input(inputs)).view(-1, 3).T
        shapes = load_affnet(weights / "AffNet.pth").shapes(inputs).numpy()
    zero = np.zeros(len(x))
    expected = np.stack([1 + x.numpy(), zero, y.numpy(), 1 + z.numpy()], 1).reshape(-1, 2, 2)
    expected /= np.sqrt(np.linalg.det(expected))[:, None, None]
    np.testing.assert_allclose(shapes, expected, atol=1e-4)
    assert np.abs(shapes - np.eye(2)).max() > 0.2


def test_frames_equal_kornias_estimators(weights: Path, camera: np.ndarray) -> None:
    """From the image to oriented affine frames, up to the two ways of cutting a patch."""
    features = pytest.importorskip("kornia.feature", reason="needs hardnet[bench]")
    detector = detectors.load(f"affnet:{weights / 'AffNet.pth'},{weights / 'OriNet.pth'}")
    frames = hessian.detect(camera, 200, upright=True)[0]
    inner = (np.abs(frames[:, :, 2] - 255.5) + frames[:, :1, 0] < 250).all(1)
    frames = frames[inner]
    affnet = features.LAFAffNetShapeEstimator(pretrained=False).eval()
    orinet = features.OriNet(pretrained=False).eval()
    for net, name in ((affnet, "AffNet"), (orinet, "OriNet")):
        state = torch.load(weights / f"{name}.pth", weights_only=True, map_location="cpu")[
            "state_dict"
        ]
        net.load_state_dict(state, strict=False)
    image = torch.from_numpy(camera)[None, None].float() / 255
    with torch.inference_mode():
        shaped = affnet(torch.from_numpy(frames)[None], image)
        turned = features.LAFOrienter(32, angle_detector=orinet)(shaped, image)[0].numpy()
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


def test_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match=r"nothing\.pth"):
        detectors.load(f"affnet:{tmp_path / 'nothing.pth'}")
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(HardnetError, match=r"text\.pth does not hold the weights of AffNet"):
        detectors.load(f"affnet:{tmp_path / 'text.pth'}")
    torch.save({"features.0.weight": torch.zeros(16, 1, 3, 3)}, tmp_path / "part.pth")
    with pytest.raises(HardnetError, match=r"part\.pth does not hold"):
        detectors.load(f"affnet:{tmp_path / 'part.pth'}")
    with pytest.raises(HardnetError, match="write affnet:"):
        detectors.load("affnet:")
