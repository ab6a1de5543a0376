"""Generate a data set with exact landmarks, for trying the whole pipeline without a download."""

from selfmark.demo.scene import Scene, generate_scene, write_scene

__all__ = ["Scene", "generate_scene", "write_scene"]
