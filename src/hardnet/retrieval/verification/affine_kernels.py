"""Affine maps between two images, as compiled loops use them.

A model is twelve numbers: the rows of the (2, 3) matrix of an affine map, then those of its
inverse. A frame is six: the rows of its matrix.
"""

from __future__ import annotations

from typing import Any

from hardnet.retrieval.compiled import compiled

AXES_WEIGHT = 0.1
"""What a frame's axes weigh in least squares, where its centre weighs 1. Axes are short and
imprecise; they decide where centres leave the map open: on a line, or on one spot."""


@compiled
def area_of(frame: Any) -> float:
    """The determinant of a frame: a quarter of the area of its patch; negative if it mirrors."""
    area: float = frame[0] * frame[4] - frame[1] * frame[3]
    return area


@compiled
def frame_to_frame(source: Any, target: Any, model: Any) -> None:
    """The model that carries one frame onto another."""
    area = area_of(source)
    a, b, d, e = source[4] / area, -source[1] / area, -source[3] / area, source[0] / area
    p, q = target[0] * a + target[1] * d, target[0] * b + target[1] * e
    r, s = target[3] * a + target[4] * d, target[3] * b + target[4] * e
    shift_x = target[2] - p * source[2] - q * source[5]
    shift_y = target[5] - r * source[2] - s * source[5]
    _set(model, p, q, r, s, shift_x, shift_y)


@compiled
def _set(model: Any, a: float, b: float, c: float, d: float, e: float, f: float) -> None:
    """Write a map and its inverse; rows as in a (2, 3) matrix."""
    model[0], model[1], model[2], model[3], model[4], model[5] = a, b, e, c, d, f
    area = a * d - b * c
    model[6], model[7], model[9], model[10] = d / area, -b / area, -c / area, a / area
    model[8] = -(model[6] * e + model[7] * f)
    model[11] = -(model[9] * e + model[10] * f)


@compiled
def transfer_error(points: Any, j: int, model: Any) -> float:
    """Squared transfer error of a pair, there and back."""
    x, y, u, v = points[0, j], points[1, j], points[2, j], points[3, j]
    there_x = model[0] * x + model[1] * y + model[2] - u
    there_y = model[3] * x + model[4] * y + model[5] - v
    back_x = model[6] * u + model[7] * v + model[8] - x
    back_y = model[9] * u + model[10] * v + model[11] - y
    error: float = there_x**2 + there_y**2 + back_x**2 + back_y**2
    return error


@compiled
def fit(query: Any, image: Any, chosen: Any, model: Any) -> bool:
    """Least squares over the centres of the chosen pairs and, weakly, over their axes."""
    count, x, y, u, v = 0, 0.0, 0.0, 0.0, 0.0
    for j in range(len(chosen)):
        if chosen[j]:
            count += 1
            x, y, u, v = x + query[j, 2], y + query[j, 5], u + image[j, 2], v + image[j, 5]
    if count == 0:
        return False
    x, y, u, v = x / count, y / count, u / count, v / count
    xx, xy, yy, xu, yu, xv, yv = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(len(chosen)):
        if not chosen[j]:
            continue
        for column in range(3):
            if column == 2:
                weight = 1.0
                p, q = query[j, 2] - x, query[j, 5] - y
                r, s = image[j, 2] - u, image[j, 5] - v
            else:
                weight = AXES_WEIGHT
                p, q = query[j, column], query[j, column + 3]
                r, s = image[j, column], image[j, column + 3]
            xx, xy, yy = xx + weight * p * p, xy + weight * p * q, yy + weight * q * q
            xu, yu = xu + weight * p * r, yu + weight * q * r
            xv, yv = xv + weight * p * s, yv + weight * q * s
    scale = xx * yy - xy * xy
    a, b = (xu * yy - yu * xy) / scale, (yu * xx - xu * xy) / scale
    c, d = (xv * yy - yv * xy) / scale, (yv * xx - xv * xy) / scale
    # Also False for NaN. A map that mirrors is none that a camera makes.
    if not a * d - b * c > 0:
        return False
    _set(model, a, b, c, d, u - a * x - b * y, v - c * x - d * y)
    return True
