"""Match a real stereo pair and check the matches against the measured disparity.

The pair is Middlebury's "motorcycle" from the scikit-image wheel, with the disparity of every left
pixel measured by structured light. The right photo is first reduced and rotated, so the matches
must cope with a change of scale and rotation as well as of viewpoint.

    python examples/demo.py            writes demo/motorcycle.png
"""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

import hardnet

TURN_DEGREES = 30.0
SHRINK = 0.7
CORRECT_PIXELS = 3.0


def main() -> None:
    """Match the pair, check the matches and draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--descriptor", default="hardnet-small", help="to compare with rootsift")
    parser.add_argument("--keypoints", type=int, default=4096, help="per photo")
    parser.add_argument("--output", type=Path, default=Path("demo/motorcycle.png"))
    options = parser.parse_args()

    left, right, disparity = load_pair()
    turned, to_turned = turn_and_shrink(right)
    print(f"right photo rotated by {TURN_DEGREES:.0f} degrees and reduced to {SHRINK:.0%}")
    names = dict.fromkeys([options.descriptor, "rootsift"])
    for name in names:
        result = hardnet.match(
            hardnet.extract(left, descriptor=name, keypoints=options.keypoints),
            hardnet.extract(turned, descriptor=name, keypoints=options.keypoints),
            model="fundamental",
        )
        a, b = result.xy_a[result.inliers], result.xy_b[result.inliers]
        known, correct = judge(a, b, disparity, to_turned)
        share = correct.sum() / max(known.sum(), 1)
        print(
            f"{name:>13}: {len(result)} matches, {len(a)} inliers; the disparity is known at "
            f"{known.sum()} of them and confirms {correct.sum()} ({share:.1%})"
        )
        if name == options.descriptor:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            result.draw(options.output)
    print(f"picture: {options.output}")


def load_pair() -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float32]]:
    """Left and right photo (H, W, 3) RGB, and disparity (H, W) of the left one, NaN if unknown."""
    from hardnet.images import read_image

    folder = files("skimage") / "data"
    left = read_image(Path(str(folder / "motorcycle_left.png")))
    right = read_image(Path(str(folder / "motorcycle_right.png")))
    with np.load(str(folder / "motorcycle_disp.npz")) as archive:
        disparity = archive["arr_0"].astype(np.float32)
    disparity[~np.isfinite(disparity)] = np.nan
    return left, right, disparity


def turn_and_shrink(
    image: NDArray[np.uint8],
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Reduce and rotate the image about its centre; also return the (3, 3) map of its pixels."""
    height, width = image.shape[:2]
    size = round(width * SHRINK), round(height * SHRINK)
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    # A resized image keeps its corners, so pixel centres move: x -> (x + 1/2) s - 1/2.
    sx, sy = size[0] / width, size[1] / height
    shrink = np.array([[sx, 0, (sx - 1) / 2], [0, sy, (sy - 1) / 2], [0, 0, 1]])
    c, s = np.cos(np.deg2rad(TURN_DEGREES)), np.sin(np.deg2rad(TURN_DEGREES))
    canvas = round(size[0] * c + size[1] * s), round(size[0] * s + size[1] * c)
    centre, target = (np.array(size) - 1) / 2, (np.array(canvas) - 1) / 2
    turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    turn[:2, 2] = target - turn[:2, :2] @ centre
    turned = cv2.warpAffine(
        small, turn[:2], canvas, flags=cv2.INTER_CUBIC, borderValue=(128, 128, 128)
    )
    return np.asarray(turned, np.uint8), turn @ shrink


def judge(
    left: NDArray[np.float32],
    turned: NDArray[np.float32],
    disparity: NDArray[np.float32],
    to_turned: NDArray[np.float64],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(M,) whether the disparity is known at each match, and whether it confirms the match.

    A point x of the left photo is at x - disparity in the right one, in the same row.
    """
    columns, rows = np.round(left).astype(int).T
    shift = disparity[rows, columns]
    expected = left - np.stack([shift, np.zeros_like(shift)], 1)
    back = np.linalg.inv(to_turned)
    right = turned @ back[:2, :2].T + back[:2, 2]
    known = np.isfinite(shift)
    return known, known & (np.linalg.norm(right - expected, axis=1) < CORRECT_PIXELS)


if __name__ == "__main__":
    main()
