"""Test that two modules access all files. They refuse links and special files, and report full disks.

`ALLOWED` lists the other modules that may access some files themselves, with the reasons.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "selfmark"

# Last parts of the names of functions and methods that open, create, change or delete a file.
ACCESS = {
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "rmtree", "unlink", "rmdir", "removedirs",
    "mkdir", "makedirs", "rename", "renames", "imwrite", "imread", "safe_open", "save_file", "load_file",
    "memmap", "tofile", "fromfile", "savez", "savez_compressed", "loadtxt", "savetxt", "genfromtxt",
    "savefig", "copyfile", "copytree", "copy2", "move", "symlink", "symlink_to", "hardlink_to", "touch",
    "chmod", "NamedTemporaryFile", "TemporaryDirectory", "TemporaryFile", "mkdtemp", "mkstemp", "ZipFile",
    "File", "VideoWriter", "VideoCapture", "ParquetWriter", "HDFStore", "NWBHDF5IO", "save_slp",
    "save_analysis_h5", "read_parquet", "to_parquet", "read_hdf", "to_hdf",
}  # fmt: skip
# Functions that access files. The last part of these names is also the name of harmless functions, so the
# names include the module.
QUALIFIED = {
    "os.replace", "os.remove", "os.link", "os.truncate", "os.mkfifo", "shutil.copy", "np.load", "np.save",
    "onnx.load", "onnx.save", "torch.save", "os.fdopen",
}  # fmt: skip
# Variables of files in memory. Images may be saved to them, but not to files on disk: if the disk is full,
# Pillow may write only a part of an image and report no error.
IN_MEMORY = {"stream"}
GUARDS = {"run/guarded_files.py", "run/files.py"}  # modules that may access any file
# Calls that have the name of a file access but open no path.
NOT_FILES = {"Run.open", "RunModels.open", "webbrowser.open", "archive.open", "self.tensorboard.open"}
# Names of functions of `run.files` and `images.input_files` that are called without a module.
GUARDED_NAMES = {"read_text", "read_bytes", "write_text", "write_bytes"}
# Mapping from other modules that may access files themselves to the allowed calls. Comments give the reason.
ALLOWED = {
    "run/array_files.py": {"safe_open"},  # opens a descriptor from `open_to_read`
    "features/cells.py": {"memmap"},  # maps an open file from `create_file`
    "images/store.py": {"memmap"},  # maps an open file from `create_file`
    # Files that the user names on the command line. They may be links, and images are checked when decoded.
    "images/decode.py": {"open"},
    "images/video_av.py": {"open"},
    "images/video_opencv.py": {"VideoCapture"},
    "images/mp4_header.py": {"open"},
    "paper/reproduction/dataset_cache.py": {"open"},  # reads only the header of an image
    "naming/image_renderer.py": {"open"},  # opens bytes in memory
    "report/embedding.py": {"np.load", "np.save"},  # pipes to and from a child process
    "report/embedding_process.py": {"np.load", "np.save", "TemporaryFile"},
    "run/tensorboard_log.py": {"open"},  # gets an open file from `open_to_read`
    "weights_cache.py": {"open"},  # opens a download, or a file that the user names
    "run/devices.py": {"read_text"},  # reads /proc/meminfo
    "paper/reproduction/figures.py": {"imread", "savefig"},  # reads our own sheets and saves to memory
    # Files of installed packages.
    "features/packaged_weights.py": {"read_bytes"},
    "model/fused_backend.py": {"read_bytes"},  # reads our own source files
    "paper/reproduction/experiment.py": {"read_text"},
    # Libraries that need a path: they get the temporary file of `atomic_write`.
    "draw/video_writer.py": {"open", "VideoWriter"},
    "export/dlc.py": {"open", "memmap", "HDFStore"},
    "export/lightning_pose.py": {"open"},
    "export/nwb.py": {"NWBHDF5IO"},
    "export/sleap.py": {"save_slp", "save_analysis_h5"},
    "export/hdf5_files.py": {"open", "File", "read_text"},  # `read_text` reads a file of /proc.
    "export/parquet.py": {"ParquetWriter"},
    "export/cvat.py": {"ZipFile"},
    "export/output_files.py": {"TemporaryFile"},
    "export/ultralytics.py": {"symlink"},  # links to the user's images, in a new folder
}
# Modules in this folder read official data sets, which the user names.
DATASETS, DATASET_ACCESS = "paper/datasets/", {"open", "read_bytes", "np.load", "File"}


def find_file_accesses(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of every call that accesses a file."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = node.func.attr if isinstance(node.func, ast.Attribute) else name
        if name in GUARDED_NAMES or name in NOT_FILES:
            continue
        if name in QUALIFIED:
            yield node.lineno, name
        elif last in ACCESS or _saves_image_to_path(node):
            yield node.lineno, last


def _saves_image_to_path(call: ast.Call) -> bool:
    """Return True for calls like `image.save(path)`, except those that save to memory."""
    name = ast.unparse(call.func).lower()
    is_save = isinstance(call.func, ast.Attribute) and call.func.attr == "save"
    return is_save and "image" in name and ast.unparse(call.args[0]) not in IN_MEMORY


def test_files_are_accessed_only_through_the_guards() -> None:
    unexpected, used = [], set()
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE).as_posix()
        if module in GUARDS:
            continue
        for line, name in find_file_accesses(path.read_text()):
            used.add((module, name))
            if module.startswith(DATASETS) and name in DATASET_ACCESS:
                continue
            if name not in ALLOWED.get(module, set()):
                unexpected.append(f"{module}:{line}: {name}")
    assert unexpected == [], "use selfmark.run.files or selfmark.run.guarded_files"
    allowed = {(module, name) for module, names in ALLOWED.items() for name in names}
    assert allowed - used == set(), "remove the calls from ALLOWED that no module makes any more"


@pytest.mark.parametrize(
    "call",
    [
        "open(path)",
        "path.read_text()",
        "shutil.rmtree(path)",
        "cv2.imwrite(p, x)",
        "os.replace(a, b)",
        "image.save(p)",
        "image.save(handle)",
    ],
)
def test_the_rule_notices_file_accesses(call: str) -> None:
    assert list(find_file_accesses(f"import os\n{call}"))
    assert not list(find_file_accesses("text.replace('a', 'b')\nread_text(path)\nRun.open(path)"))


def _find_input_errors(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in `raise InputError(...)`."""
    for node in ast.walk(tree):
        call = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "InputError":
            yield call


@pytest.mark.parametrize(
    "module", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_failed_writes_raise_disk_errors(module: Path) -> None:
    """No InputError reports a failed write: `compare` and `reproduce` blame an InputError on the method."""
    for call in _find_input_errors(ast.parse(module.read_text())):
        message = ast.unparse(call).split("InputError(", 1)[1]
        assert not re.match(r"f?['\"](cannot (write|store|save) |.*is the disk full)", message), message


def test_caches_compare_the_whole_state_of_a_file() -> None:
    """A replaced file can keep its size and modification time, so these alone are no key of a cache."""
    modules = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"st_mtime|getmtime", path.read_text())
    }
    assert modules == {
        "run/guarded_files.py",  # `get_file_state`, for all caches
        "naming/landmark_prediction.py",  # the newest of several folders
        "watch_page/run_state.py",  # only pictures that selfmark writes itself
    }
