"""Pickling and copying of OpenCV's keypoints and matches, which OpenCV does not offer.

``multiprocessing`` pickles whatever it sends from one process to another. Who reads such a pickle
needs OpenCV only.
"""

from __future__ import annotations

import copyreg
from typing import Any

import cv2


def register() -> None:
    """Teach ``pickle`` and ``copy`` about ``cv2.KeyPoint`` and ``cv2.DMatch``."""
    copyreg.pickle(cv2.KeyPoint, _reduce_keypoint)
    copyreg.pickle(cv2.DMatch, _reduce_match)


def _reduce_keypoint(point: cv2.KeyPoint) -> tuple[Any, ...]:
    values = *point.pt, point.size, point.angle, point.response, point.octave, point.class_id
    return cv2.KeyPoint, values


def _reduce_match(match: cv2.DMatch) -> tuple[Any, ...]:
    return cv2.DMatch, (match.queryIdx, match.trainIdx, match.imgIdx, match.distance)
