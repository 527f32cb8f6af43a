"""Photographs of scikit-image with views of them by known homographies."""

import cv2
import numpy as np
import pytest

from hardnet.images import read_image, to_grey

TURN = np.vstack([cv2.getRotationMatrix2D((160, 160), 20, 0.85), [0, 0, 1]])
TILT = np.array([[0.9, 0.08, 10.0], [-0.05, 0.85, 20.0], [2e-4, -1e-4, 1.0]])


@pytest.fixture(scope="session")
def stereo_folder(photos, tmp_path_factory):
    """pairs.txt with a turned, a tilted and an unrelated pair, and one without ground truth."""
    root = tmp_path_factory.mktemp("stereo") / "made"
    root.mkdir()
    camera, brick = (
        cv2.resize(to_grey(read_image(photos / f"{name}.png")), (320, 320))
        for name in ("camera", "brick")
    )
    for name, view in {"turn": TURN, "tilt": TILT}.items():
        warped = cv2.warpPerspective(camera, view, (320, 320), borderMode=cv2.BORDER_REFLECT)
        cv2.imwrite(str(root / f"{name}.png"), warped)
        np.savetxt(root / f"{name}.txt", view)
    cv2.imwrite(str(root / "camera.png"), camera)
    cv2.imwrite(str(root / "brick.png"), brick)
    (root / "pairs.txt").write_text(
        "camera.png turn.png turn.txt\n"
        "camera.png tilt.png tilt.txt\n"
        "camera.png brick.png tilt.txt\n"
        "camera.png turn.png\n"
    )
    return root
