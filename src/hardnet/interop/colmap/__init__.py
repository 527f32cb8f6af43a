"""COLMAP: databases from features and matches, and models from a folder of photos."""

from hardnet.interop.colmap.database import write_database
from hardnet.interop.colmap.pairs import PairSettings
from hardnet.interop.colmap.reconstruction import reconstruct
from hardnet.interop.colmap.settings import Settings
from hardnet.sfm.cameras import CameraSettings

__all__ = ["CameraSettings", "PairSettings", "Settings", "reconstruct", "write_database"]
