"""A generated data set with exact truth, so that the whole pipeline can be tried without any download."""

from selfmark.demo.scene import Scene, generate_scene, write_scene

__all__ = ["Scene", "generate_scene", "write_scene"]
