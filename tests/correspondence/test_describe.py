"""Test keypoints and descriptors of many images: mirror images, several processes and little memory.

Phi is the network that finds and describes keypoints (Stage 1).
"""

from __future__ import annotations

import pytest
import torch

from selfmark.config import Config, override, preset
from selfmark.correspondence import describe as describe_module
from selfmark.correspondence.describe import describe_images
from selfmark.correspondence.recovery import DescribedPoints
from selfmark.images.feed import PixelFeed
from selfmark.model.heatmaps import to_cells
from selfmark.model.network import Phi, prepare_network
from selfmark.points import concatenate_keypoints
from selfmark.run.processes import ProcessGroup
from tests.conftest import QUICK

CONFIG = override(preset("tiny"), QUICK | {"runtime.predict_batch": 3, "heatmaps.max_points": 5})
PIXELS = torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _build_phi() -> Phi:
    torch.manual_seed(0)
    return Phi(CONFIG.network)


def test_descriptors_match_those_of_single_images_and_their_mirror_images() -> None:
    phi = _build_phi()
    described = describe_images(phi, PixelFeed(PIXELS, torch.device("cpu")), CONFIG)
    assert described.points.descriptor is not None
    assert described.mirrored is not None
    assert described.points.counts(8).min() >= 1
    for index in range(len(described.points)):
        image = PIXELS[described.points.image_index[index]][None].float() / 255
        cell = to_cells(described.points.xy[index])[None, None]
        mirrored_cell = torch.stack([CONFIG.map_size - 1 - cell[..., 0], cell[..., 1]], dim=-1)
        with torch.no_grad():
            maps, mirrored_maps = phi(image), phi(image.flip(-1))
            descriptor = phi.describe(maps.features, cell)[0, 0]
            mirrored_descriptor = phi.describe(mirrored_maps.features, mirrored_cell)[0, 0]
        torch.testing.assert_close(descriptor, described.points.descriptor[index])
        torch.testing.assert_close(mirrored_descriptor, described.mirrored[index])


def test_each_process_describes_its_part_of_the_images() -> None:
    phi, feed = _build_phi(), PixelFeed(PIXELS, torch.device("cpu"))
    described = describe_images(phi, feed, CONFIG)
    done: list[tuple[int, int]] = []
    parts = [
        describe_images(phi, feed, CONFIG, lambda *progress: done.append(progress), ProcessGroup(rank, 3))
        for rank in range(3)
    ]
    joined = concatenate_keypoints([part.points for part in parts])
    assert torch.equal(joined.image_index, described.points.image_index)
    torch.testing.assert_close(joined.xy, described.points.xy)
    mirrored = [part.mirrored for part in parts if part.mirrored is not None]
    assert described.mirrored is not None
    torch.testing.assert_close(torch.cat(mirrored), described.mirrored)
    assert done == [(2, 2), (3, 3), (3, 3)]  # 2, 3 and 3 of the 8 images


def test_images_without_points_have_no_descriptors() -> None:
    config = override(CONFIG, {"heatmaps.threshold": 2.0})  # more than any confidence
    described = describe_images(_build_phi(), PixelFeed(PIXELS, torch.device("cpu")), config)
    assert described.points.descriptor is not None
    assert described.mirrored is not None
    assert described.points.descriptor.shape == described.mirrored.shape == (0, CONFIG.network.descriptor)


def test_every_image_can_have_the_maximum_number_of_points() -> None:
    config = override(CONFIG, {"heatmaps.threshold": -1.0, "heatmaps.nms_radius": 0})  # every cell is a peak
    described = describe_images(_build_phi(), PixelFeed(PIXELS, torch.device("cpu")), config)
    assert (described.points.counts(8) == 5).all()


@pytest.mark.parametrize(("missing_bytes", "expected_device"), [(0, "cuda"), (1, "cpu")])
def test_descriptors_are_on_the_host_if_the_gpu_has_too_little_memory(
    missing_bytes: int, expected_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = override(CONFIG, {"runtime.device_fraction": 0.25})
    # This is the number of bytes of the float32 descriptors of 100 images, with 5 points each, and of their
    # mirror images.
    size = 4 * 2 * 500 * config.network.descriptor
    devices: list[torch.device] = []

    def record_device(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[int, ...]:
        devices.append(device)
        return shape

    monkeypatch.setattr(describe_module, "measure_free_memory", lambda device: 4 * size - missing_bytes)
    monkeypatch.setattr(torch, "empty", record_device)
    shape = describe_module._allocate_descriptors(100, config, torch.device("cuda"))
    assert shape == (2, 500, config.network.descriptor)
    assert devices == [torch.device(expected_device)]


@pytest.mark.gpu
def test_descriptors_on_the_host_are_the_same_and_gpu_memory_does_not_grow() -> None:
    cuda = torch.device("cuda")
    base_config = override(CONFIG, {"runtime.predict_batch": 64, "network.descriptor": 128})
    torch.manual_seed(0)
    phi = Phi(base_config.network)
    prepare_network(phi, cuda, base_config.runtime)

    def measure(images: int, config: Config) -> tuple[DescribedPoints, int]:
        """Describe images; return the points and the bytes of GPU memory that this needed."""
        feed = PixelFeed(PIXELS.repeat(images // 8, 1, 1, 1), cuda)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return describe_images(phi, feed, config), torch.cuda.max_memory_allocated() - before

    host_config = override(base_config, {"runtime.device_fraction": 0.0})
    on_gpu, _ = measure(640, base_config)
    few_points, few_bytes = measure(640, host_config)
    assert on_gpu.points.descriptor is not None
    assert few_points.points.descriptor is not None
    assert on_gpu.mirrored is not None
    assert few_points.mirrored is not None
    assert on_gpu.mirrored.is_cuda
    assert not few_points.mirrored.is_cuda
    torch.testing.assert_close(few_points.points.xy, on_gpu.points.xy.cpu())
    torch.testing.assert_close(
        few_points.points.descriptor, on_gpu.points.descriptor.cpu(), atol=1e-3, rtol=0
    )
    torch.testing.assert_close(few_points.mirrored, on_gpu.mirrored.cpu(), atol=1e-3, rtol=0)
    many_points, many_bytes = measure(6_400, host_config)
    assert many_points.mirrored is not None
    descriptor_bytes = 2 * many_points.mirrored.nbytes  # of the images and of their mirror images
    assert many_bytes - few_bytes < 0.2 * descriptor_bytes
