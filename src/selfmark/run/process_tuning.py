"""Set options of the whole process that make computing on a CPU faster without changing results."""

from __future__ import annotations

import ctypes
import os
import sys

# Parameters of glibc's `mallopt`, from its header malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Blocks of up to this size are reused after they are freed. glibc accepts no larger value on 64-bit systems.
_MAX_REUSED_BLOCK = 32 << 20
_MAX_KEPT_BYTES = 512 << 20  # free memory that may stay in the process


def tune_process() -> None:
    """Set how threads of this process wait and how it reuses memory; call before torch is imported.

    Environment variables that are already set keep their values.
    """
    # OpenMP threads spin while they wait for work. Long spinning makes a busy machine several times slower;
    # no spinning makes an idle machine slower. This number of spins is a compromise, measured on two cores.
    # The variable is read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # torch requests pages of 2 MB for large tensors. It reads the variable at the first such tensor.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Make glibc keep freed memory, up to the limits above; do nothing with other C libraries.

    By default, glibc returns large freed blocks to the system. The maps of a training step are freed and
    allocated again in every step, so the system clears 10,000 to 30,000 pages per step, which takes up to a
    fifth of the time.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAX_REUSED_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, _MAX_KEPT_BYTES)
