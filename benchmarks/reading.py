"""Measure reading and cropping of large photographs, which are decoded at a reduced size, and of small crops.

    PYTHONPATH=src python benchmarks/reading.py --out docs/results/reading.json

The unit is CPU time per image over all threads, because it hardly depends on other work on the machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import PIL
import provenance

from selfmark.config import Images, preset
from selfmark.image_ref import ImageRef
from selfmark.images.crop import compute_crop_regions, extract_crop
from selfmark.images.decode import Pixels, read_image
from selfmark.images.store import load_store
from selfmark.run.files import write_json

PHOTO, CROP = (4000, 3000), (176, 176)  # width, height
COUNTS = {PHOTO: 24, CROP: 400}  # number of images
JPEG_QUALITY = 90


def main() -> None:
    """Measure all sizes and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    cv2.setNumThreads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size, count in COUNTS.items():
            refs = write_images(Path(folder), size, count)
            for name in ("fast", "tiny"):
                images = preset(name).images
                rows.append(
                    {
                        "jpeg": f"{size[0]} x {size[1]}",
                        "network": images.size,
                        "ms_as_built": _milliseconds(lambda: load_store(refs, images, 4.0, None), count),  # noqa: B023
                        "ms_in_full": _milliseconds(lambda: read_full_size(refs, images), count),  # noqa: B023
                    }
                )
                print(rows[-1], flush=True)
    if out is not None:
        record = {
            "script": "benchmarks/reading.py",
            "hardware": provenance.processor(),
            "versions": {"pillow": PIL.__version__, "opencv": cv2.__version__, "numpy": np.__version__},
            "commit": provenance.commit(),
            "seed": 0,
            "unit": "ms of CPU time per image, all threads together",
            "rows": rows,
        }
        write_json(record, out)


def write_images(folder: Path, size: tuple[int, int], count: int) -> list[ImageRef]:
    """Write copies of a JPEG of smooth blotches and grain, which has about as many bytes as a photograph."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{size[0]}-{number:03}.jpg" for number in range(count)]
    blotches = cv2.resize(rng.integers(0, 256, (94, 125, 3), dtype=np.uint8), size)
    grain = rng.normal(0, 5, (size[1], size[0], 3))
    pixels = np.clip(blotches + grain, 0, 255).astype(np.uint8)
    encoded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes()
    for path in paths:
        path.write_bytes(encoded)
    return [ImageRef(path) for path in paths]


def read_full_size(refs: list[ImageRef], images: Images) -> list[Pixels]:
    """Decode images at full size, then crop them."""
    crops = []
    for ref in refs:
        pixels = read_image(ref.path, images.max_megapixels)
        region = compute_crop_regions([pixels.shape[1::-1]], [[np.nan] * 4], images)[0]
        crops.append(extract_crop(pixels, region, images.size))
    return crops


def _milliseconds(work: Callable[[], object], count: int) -> float:
    work()  # warm up the file cache
    started = time.process_time()
    work()
    return round(1000 * (time.process_time() - started) / count, 2)


if __name__ == "__main__":
    main()
