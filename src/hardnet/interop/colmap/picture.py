"""A model to look at: its points as a PLY file, and a picture of the points and the cameras."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.interop.colmap.database import require_pycolmap
from hardnet.storage import claim, replacing

Floats = NDArray[np.float64]

CAMERA_COLOUR = (40, 40, 220)  # blue, green, red
_TURN, _LIFT = np.radians((25, 20))  # we stand to the right of the cameras and above them
_MARGIN = 0.08
_CAMERA_SIZE = 0.04  # of the picture's longer side


@dataclass(frozen=True)
class Looks:
    """What is drawn.

    Attributes:
        points: (N, 3) positions.
        colours: (N, 3) uint8, blue, green and red.
        poses: (M, 3, 4) from the world to each camera, which looks along z, y down.
    """

    points: Floats
    colours: NDArray[np.uint8]
    poses: Floats


def read_looks(folder: Path) -> Looks:
    """The points and the cameras of a COLMAP model."""
    model = require_pycolmap().Reconstruction(str(folder))
    points = list(model.points3D.values())
    poses = [model.images[number].cam_from_world().matrix() for number in model.reg_image_ids()]
    return Looks(
        np.array([point.xyz for point in points], np.float64).reshape(-1, 3),
        np.array([point.color[::-1] for point in points], np.uint8).reshape(-1, 3),
        np.array(poses, np.float64).reshape(-1, 3, 4),
    )


def write_looks(folder: Path, points: Path, picture: Path) -> None:
    """Write the points of a model as ``.ply`` and a picture of it as ``.jpg``."""
    looks = read_looks(folder)
    with replacing(claim(points)) as part:
        part.write_bytes(ply(looks))
    done, encoded = cv2.imencode(".jpg", draw(looks))
    assert done
    with replacing(claim(picture)) as part:
        part.write_bytes(encoded.tobytes())


def ply(looks: Looks) -> bytes:
    """The points with their colours as a binary PLY file, as MeshLab and CloudCompare read it."""
    numbers = [("x", "<f4"), ("y", "<f4"), ("z", "<f4")]
    channels = [("red", "u1"), ("green", "u1"), ("blue", "u1")]
    rows = np.empty(len(looks.points), numbers + channels)
    for column, (name, _) in enumerate(numbers):
        rows[name] = looks.points[:, column]
    for column, (name, _) in enumerate(reversed(channels)):
        rows[name] = looks.colours[:, column]
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {len(rows)}"]
    header += [f"property float {name}" for name, _ in numbers]
    header += [f"property uchar {name}" for name, _ in channels]
    return "\n".join([*header, "end_header", ""]).encode("ascii") + rows.tobytes()


def draw(looks: Looks, size: int = 1200) -> NDArray[np.uint8]:
    """(H, W, 3) the model from behind its cameras, a little above and to the side of them.

    The few points far from all others, which every model has, do not count for the frame.
    """
    view = viewpoint(looks.poses)
    points = looks.points @ view.T
    centres = _centres(looks.poses) @ view.T
    inside = np.percentile(points, (2, 98), axis=0) if len(points) else centres[:1].repeat(2, 0)
    corners = np.vstack([inside, centres])[:, :2]
    low, high = corners.min(0), corners.max(0)
    scale = (1 - 2 * _MARGIN) * size / max(float((high - low).max()), 1e-12)
    width, height = (int(np.ceil(side * scale + 2 * _MARGIN * size)) for side in high - low)
    picture = np.full((height, width, 3), 255, np.uint8)

    def place(positions: Floats) -> Floats:
        return np.asarray((positions[:, :2] - low) * scale + _MARGIN * size)

    far_to_near = np.argsort(-points[:, 2], kind="stable")
    pixels = np.rint(place(points[far_to_near])).astype(np.int64)
    for step in np.ndindex(3, 3):
        at = pixels + step
        seen = ((at >= 0) & (at < (width, height))).all(1)
        picture[at[seen, 1], at[seen, 0]] = looks.colours[far_to_near[seen]]
    for pose in looks.poses:
        outline = place(_pyramid(pose, _CAMERA_SIZE * size / scale) @ view.T)
        apex, *base = (tuple(map(int, np.rint(corner))) for corner in outline)
        for k, corner in enumerate(base):
            for end in (apex, base[k - 1]):
                cv2.line(picture, corner, end, CAMERA_COLOUR, 2, cv2.LINE_AA)
    return picture


def viewpoint(poses: Floats) -> Floats:
    """(3, 3) the rotation from the world to the eye: x to the right, y down, z away from it.

    Without turn and lift, the eye looks as the cameras (M, 3, 4) do in the mean.
    """
    ahead, down = (poses[:, row, :3].sum(0) for row in (2, 1))
    ahead = ahead if np.linalg.norm(ahead) > 1e-6 * len(poses) else poses[0, 2, :3]
    z = ahead / np.linalg.norm(ahead)
    y = down - (down @ z) * z
    if np.linalg.norm(y) < 1e-6 * len(poses):
        y = poses[0, 1, :3] - (poses[0, 1, :3] @ z) * z
    y = y / np.linalg.norm(y)
    mean = np.stack([np.cross(y, z), y, z])
    turn, lift = (
        np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) for a in (_TURN, _LIFT)
    )
    about_y, about_x = np.eye(3), np.eye(3)
    about_y[np.ix_((0, 2), (0, 2))] = turn
    about_x[np.ix_((1, 2), (1, 2))] = lift
    return np.asarray(about_x @ about_y @ mean)


def _centres(poses: Floats) -> Floats:
    return np.asarray(-np.einsum("mji,mj->mi", poses[:, :, :3], poses[:, :, 3]))


def _pyramid(pose: Floats, depth: float) -> Floats:
    """(5, 3) the camera's centre and the corners of what it sees at ``depth``."""
    corners = np.array(
        [[0, 0, 0], [-0.6, -0.45, 1], [0.6, -0.45, 1], [0.6, 0.45, 1], [-0.6, 0.45, 1]]
    )
    return np.asarray((corners * depth - pose[:, 3]) @ pose[:, :3])
