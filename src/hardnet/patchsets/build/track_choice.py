"""Which observations of which points make good patches of a set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.frames import Frames
from hardnet.patchsets.build.colmap_model import Floats, Ints, Model, Tracks
from hardnet.patchsets.build.track_frames import by_value
from hardnet.patchsets.overlap import suppress_overlaps


def long_enough(point: Ints, length: int) -> NDArray[np.bool_]:
    """(M,) whether the observation's point has at least ``length`` observations."""
    _, group, count = np.unique(point, return_inverse=True, return_counts=True)
    return np.asarray(count[group] >= length)


def drop_twins(tracks: Tracks, frames: Frames) -> NDArray[np.bool_]:
    """(M,) whether the observation's point stays when one of each two on the same spot goes.

    COLMAP gives a keypoint with two orientations two points. Trained or tested as different, they
    would be a question without an answer. A point goes if in any photo its window overlaps that of
    a point with a longer track; see :mod:`hardnet.patchsets.overlap`.
    """
    _, group, count = np.unique(tracks.point, return_inverse=True, return_counts=True)
    length = count[group]
    gone = np.zeros(len(count), bool)
    for rows in by_value(tracks.view, np.arange(len(tracks))):
        alive = rows[~gone[group[rows]]]
        best = alive[np.lexsort((tracks.point[alive], -length[alive]))]
        kept = suppress_overlaps(frames[best], len(best))
        gone[group[np.delete(best, kept)]] = True
    return np.asarray(~gone[group])


def choose_points(tracks: Tracks, limit: int) -> NDArray[np.bool_]:
    """(M,) whether the observation's point is one of the ``limit`` with the longest tracks."""
    _, group, count = np.unique(tracks.point, return_inverse=True, return_counts=True)
    chosen = np.ones(len(count), bool)
    if limit:
        chosen[np.argsort(-count, kind="stable")[limit:]] = False
    return np.asarray(chosen[group])


def spread_out(model: Model, tracks: Tracks, limit: int) -> NDArray[np.bool_]:
    """(M,) at most ``limit`` observations of a point, seen from the most different directions."""
    keep = np.ones(len(tracks), bool)
    places = np.array([view.to_world(np.zeros((1, 3)))[0] for view in model.views])
    for rows in by_value(tracks.point, np.arange(len(tracks))):
        if len(rows) > limit:
            towards = places[tracks.view[rows]] - model.xyz[tracks.point[rows[0]]]
            keep[rows] = False
            keep[rows[farthest(towards, limit)]] = True
    return keep


def farthest(directions: Floats, limit: int) -> NDArray[np.intp]:
    """Indices of ``limit`` of the (N, 3) directions, each the farthest from all before it.

    The first is the one nearest to the mean, so that the choice does not begin with a freak.
    """
    unit = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    chosen = [int((unit @ unit.mean(0)).argmax())]
    closeness = unit @ unit[chosen[0]]
    closeness[chosen[0]] = np.inf
    while len(chosen) < limit:
        chosen.append(int(closeness.argmin()))
        closeness = np.maximum(closeness, unit @ unit[chosen[-1]])
        closeness[chosen[-1]] = np.inf
    return np.array(chosen, np.intp)
