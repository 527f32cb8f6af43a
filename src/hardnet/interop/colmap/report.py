"""What a reconstruction made, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hardnet.sfm.colmap import require_pycolmap


@dataclass(frozen=True)
class ModelNumbers:
    """The size and the quality of a model.

    Attributes:
        registered: photos whose pose was found.
        points: 3D points.
        observations: keypoints that are seen of them.
        track_length: photos that see a point, on average.
        reprojection_error: pixels between a keypoint and the projection of its point, on average.
    """

    registered: int
    points: int
    observations: int
    track_length: float
    reprojection_error: float


@dataclass(frozen=True)
class Report:
    """What became of a folder of photos.

    Attributes:
        photos: files that were found.
        skipped: photos that could not be used, name -> why.
        keypoints: of all photos together.
        pairs: that were matched.
        verified_pairs: that COLMAP believes.
        matches: of these pairs, those that agree with their geometry.
        models: folder, relative to the work folder -> its numbers, most points first; None if no
            models were asked for.
    """

    photos: int
    skipped: Mapping[str, str]
    keypoints: int
    pairs: int
    verified_pairs: int
    matches: int
    models: Mapping[str, ModelNumbers] | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def model_numbers(folder: Path) -> ModelNumbers:
    """The numbers of a model on disk."""
    model = require_pycolmap().Reconstruction(str(folder))
    return ModelNumbers(
        registered=model.num_reg_images(),
        points=model.num_points3D(),
        observations=model.compute_num_observations(),
        track_length=model.compute_mean_track_length(),
        reprojection_error=model.compute_mean_reprojection_error(),
    )


def database_report(database: Path, photos: int, skipped: Mapping[str, str]) -> Report:
    """The numbers of a database."""
    with require_pycolmap().Database.open(database) as opened:
        # COLMAP keeps a row for a pair that failed, too.
        _, inliers = opened.read_two_view_geometry_num_inliers()
        return Report(
            photos=photos,
            skipped=skipped,
            keypoints=opened.num_keypoints(),
            pairs=opened.num_matched_image_pairs(),
            verified_pairs=sum(count > 0 for count in inliers),
            matches=sum(inliers),
        )
