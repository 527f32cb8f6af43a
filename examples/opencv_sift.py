"""An ordinary OpenCV program: SIFT, brute-force matching, ratio test, epipolar geometry.

Only one line differs from the SIFT version; ``--sift`` runs the original.

    python examples/opencv_sift.py LEFT RIGHT
    python examples/opencv_sift.py           the stereo pair in the scikit-image wheel
"""

from __future__ import annotations

import argparse
from importlib.resources import files

import cv2
import numpy as np

from hardnet.interop.opencv import HardNet


def main() -> None:
    """Match two photos and count the matches consistent with one epipolar geometry."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    photos = files("skimage") / "data"
    parser.add_argument("left", nargs="?", default=str(photos / "motorcycle_left.png"))
    parser.add_argument("right", nargs="?", default=str(photos / "motorcycle_right.png"))
    parser.add_argument("--sift", action="store_true", help="use SIFT, as before the change")
    parser.add_argument("--output", help="save a picture of the matches")
    options = parser.parse_args()

    left, right = cv2.imread(options.left), cv2.imread(options.right)

    sift = HardNet(nfeatures=2000)  # the one line
    if options.sift:
        sift = cv2.SIFT_create(nfeatures=2000)

    keypoints1, descriptors1 = sift.detectAndCompute(left, None)
    keypoints2, descriptors2 = sift.detectAndCompute(right, None)

    matcher = cv2.BFMatcher(sift.defaultNorm())
    pairs = matcher.knnMatch(descriptors1, descriptors2, k=2)
    good = [first for first, second in pairs if first.distance < 0.8 * second.distance]

    points1 = np.float32([keypoints1[m.queryIdx].pt for m in good])
    points2 = np.float32([keypoints2[m.trainIdx].pt for m in good])
    _, mask = cv2.findFundamentalMat(points1, points2, cv2.USAC_MAGSAC, 1.0, 0.999, 10000)

    inliers = int(mask.sum())
    print(f"{len(keypoints1)} and {len(keypoints2)} keypoints, {len(good)} matches")
    print(f"{inliers} inliers ({inliers / len(good):.0%})")
    if options.output:
        flags = cv2.DRAW_MATCHES_FLAGS_NOT_DRAW_SINGLE_POINTS
        kept = mask.ravel().tolist()
        picture = cv2.drawMatches(
            left, keypoints1, right, keypoints2, good, None, matchesMask=kept, flags=flags
        )
        cv2.imwrite(options.output, picture)


if __name__ == "__main__":
    main()
