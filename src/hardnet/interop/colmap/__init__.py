"""COLMAP: databases from features and matches, and models from a folder of photos."""

from hardnet.interop.colmap.database import CameraSettings, write_database
from hardnet.interop.colmap.reconstruction import (
    PairSettings,
    ReconstructionSettings,
    reconstruct,
)

__all__ = [
    "CameraSettings",
    "PairSettings",
    "ReconstructionSettings",
    "reconstruct",
    "write_database",
]
