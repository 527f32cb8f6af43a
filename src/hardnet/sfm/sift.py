"""COLMAP's own SIFT: photos -> a database with keypoints and verified matches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hardnet.sfm.cameras import CameraSettings, import_images
from hardnet.sfm.colmap import remove_database, require_pycolmap


def extract(
    database: Path,
    images: Path,
    names: Sequence[str],
    max_size: int,
    keypoints: int | None = None,
    seed: int = 0,
    cameras: CameraSettings | None = None,
) -> None:
    """Write cameras, images, keypoints and descriptors of the photos; an old file is replaced.

    Args:
        database: file to write.
        images: folder of the photos.
        names: of the photos, relative to it; they are numbered in this order.
        max_size: longer side in pixels to which photos are shrunk to find keypoints.
        keypoints: most places per photo, None for COLMAP's default; a place may have two
            orientations, which count as one here.
        seed: of COLMAP's random numbers.
        cameras: what is known about them.
    """
    pycolmap = require_pycolmap()
    remove_database(database)  # half-written
    options = pycolmap.FeatureExtractionOptions()
    options.max_image_size, options.use_gpu = max_size, False
    if keypoints is not None:
        options.sift.max_num_features = keypoints
    pycolmap.set_random_seed(seed)
    # Registered first: the threads of the extraction would number the photos as they finish.
    pycolmap.Database.open(database).close()
    import_images(database, images, names, cameras or CameraSettings())
    pycolmap.extract_features(database, images, names, extraction_options=options)


def match(database: Path, seed: int = 0, following: int = 0) -> None:
    """Match and verify pairs of photos of the database.

    Args:
        database: with keypoints and descriptors.
        seed: of the random samples of the verification.
        following: 0 matches all pairs; else each photo only with this number of those that follow
            it in the order of names, as when somebody walks or flies past.
    """
    pycolmap = require_pycolmap()
    matching, verification = pycolmap.FeatureMatchingOptions(), pycolmap.TwoViewGeometryOptions()
    matching.use_gpu = False
    verification.ransac.random_seed = seed
    options = {"matching_options": matching, "verification_options": verification}
    if following:
        pairing = pycolmap.SequentialPairingOptions()
        pairing.overlap, pairing.quadratic_overlap = following, False
        pycolmap.match_sequential(database, pairing_options=pairing, **options)
    else:
        pycolmap.match_exhaustive(database, **options)
