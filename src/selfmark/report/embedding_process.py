"""Compute t-SNE in another process, so that the main process can use the GPU meanwhile.

A thread would not do: importing scikit-learn keeps other threads waiting, and t-SNE limits the number of
threads of numerical libraries for the whole process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from selfmark.points import FloatArray
from selfmark.report import embedding

# The file is run by its path, because the package that contains it imports torch.
_START = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "runpy.run_path(sys.argv[2])['serve_embedding']()"
)
_MAX_SECONDS = 60.0  # time after which the main process computes t-SNE itself


class EmbeddingProcess:
    """A running process that computes `embedding.tsne`."""

    def __init__(self, vectors: FloatArray) -> None:
        """Start the process on vectors [P, D].

        Raises:
            OSError: if it cannot be started.
        """
        self._vectors = vectors
        self._output = tempfile.TemporaryFile()  # noqa: SIM115, closed by `close`
        arguments = [json.dumps([str(entry) for entry in sys.path]), str(Path(embedding.__file__))]
        with tempfile.TemporaryFile() as vector_file:
            np.save(vector_file, vectors, allow_pickle=False)
            vector_file.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, *arguments],
                stdin=vector_file,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C in a terminal reaches the main process only.
            )

    def result(self) -> FloatArray:
        """Wait for the positions [P, 2]; compute them here if the process fails."""
        try:
            self._process.wait(_MAX_SECONDS)
            self._output.seek(0)
            positions: FloatArray = np.load(self._output, allow_pickle=False)
        except (subprocess.TimeoutExpired, OSError, ValueError, EOFError):
            return embedding.tsne(self._vectors)
        return positions

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._output.close()
