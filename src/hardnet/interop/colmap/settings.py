"""How photos become a COLMAP model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.features import MAX_SIZE
from hardnet.interop.colmap.pairs import PairSettings, read_text
from hardnet.interop.colmap.two_view import Verification
from hardnet.matching.matches import Strategy
from hardnet.sfm.cameras import CameraSettings
from hardnet.sfm.mapping import MapperSettings

KEYPOINTS = 4096
"""Twice as many as for matching two photos: a point counts only if several photos see it."""


@dataclass(frozen=True)
class Settings:
    """How photos become a model; stored in the work folder.

    Attributes:
        detector: name of a detector.
        descriptor: name of a descriptor, or a weights file.
        keypoints: most per photo.
        max_size: longer side to which photos are shrunk before detection; None: never.
        upright: the photos are the right way up.
        pairs: which photos to match: how to choose them, or a file that lists them.
        strategy: how matches are found. If it is guided, more are looked for along our geometry.
        verification: "colmap": COLMAP verifies the matches by what it knows of the cameras;
            "hardnet": by the strategy's estimator, threshold and check of frames.
        cameras: what is known about the cameras.
        mapper: how models are built.
    """

    detector: str = "dog"
    descriptor: str = "hardnet"
    keypoints: int = KEYPOINTS
    max_size: int | None = MAX_SIZE
    upright: bool = False
    pairs: PairSettings | Path = field(default_factory=PairSettings)
    strategy: Strategy = field(default_factory=Strategy)
    verification: Verification = "colmap"
    cameras: CameraSettings = field(default_factory=CameraSettings)
    mapper: MapperSettings = field(default_factory=MapperSettings)

    def __post_init__(self) -> None:
        if self.verification not in ("colmap", "hardnet"):
            raise HardnetError(f"no verification '{self.verification}': choose colmap or hardnet")

    def to_json(self) -> dict[str, Any]:
        """As JSON values; of a file of pairs its content, which is what the result depends on."""
        pairs = read_text(self.pairs) if isinstance(self.pairs, Path) else asdict(self.pairs)
        return {**asdict(self), "pairs": pairs}
