"""Test compilation of Triton kernels in threads: which kernels a run needs, failures, and stops."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import selfmark.model.kernels
from selfmark.config import override, preset
from selfmark.model.kernels.launch import Launch, Recordable, record_launches
from selfmark.train import kernel_compilation
from selfmark.train.kernel_compilation import compile_in_threads, compile_kernels, iterate_launches

KERNELS = Path(str(selfmark.model.kernels.__file__)).parent
CPU, META = torch.device("cpu"), torch.device("meta")


class FakeKernel:
    """A replacement for the result of `triton.jit` that remembers its launches."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.launched: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **keywords: self.launched.append((grid, arguments, keywords))


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """If Triton is not installed, replace it by a module that defines kernels but cannot compile them."""
    if find_spec("triton") is not None:
        yield
        return
    # The meta device needs this module. If it were imported after the fake module is in place, it would take
    # the fake for the real Triton.
    importlib.import_module("torch._dynamo")
    language = types.ModuleType("triton.language")
    fake_triton = types.ModuleType("triton")
    fake_triton.jit, fake_triton.language = FakeKernel, language  # type: ignore[attr-defined]
    fake_triton.cdiv = lambda value, step: -(-value // step)  # type: ignore[attr-defined]
    fake_triton.next_power_of_2 = lambda value: 1 << (value - 1).bit_length()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", fake_triton)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    yield
    # Remove the modules that were imported with the fake, so that later tests do not use them.
    for name in [name for name in sys.modules if name.startswith("selfmark.model.")]:
        if name.endswith("fused_backend") or (".kernels." in name and not name.endswith(".launch")):
            module = sys.modules.pop(name)
            parent, _, child = name.rpartition(".")
            if getattr(sys.modules[parent], child, None) is module:
                delattr(sys.modules[parent], child)


def test_only_launches_on_the_meta_device_are_recorded() -> None:
    kernel = FakeKernel(None)
    launch = Recordable(kernel)[(4, 2)]
    real, meta = torch.zeros(3), torch.zeros(3, device=META)
    with record_launches() as launches:
        launch(real, 5, WIDTH=8)
        launch(meta, 5, WIDTH=8)
    assert kernel.launched == [((4, 2), (real, 5), {"WIDTH": 8})]
    assert launches == [Launch(kernel, (meta, 5), {"WIDTH": 8})]


@pytest.mark.parametrize(
    ("arguments", "keywords", "is_same"),
    [
        # Neither the shape nor the multiple of 16 matters.
        ((torch.zeros(9), 64, 0.5), {"WIDTH": 8, "area": 48}, True),
        ((torch.zeros(3), 33, 0.1), {"WIDTH": 8, "area": 48}, False),  # 33 is not a multiple of 16.
        ((torch.zeros(3), 1, 0.1), {"WIDTH": 8, "area": 48}, False),  # Triton compiles 1 as a constant.
        ((torch.zeros(3), 32, 0.1), {"WIDTH": 16, "area": 48}, False),
        ((torch.zeros(3).half(), 32, 0.1), {"WIDTH": 8, "area": 48}, False),
        ((torch.zeros(3), 2**40, 0.1), {"WIDTH": 8, "area": 48}, False),  # The number needs 64 bits.
    ],
)
def test_variants_differ_where_triton_compiles_another_kernel(
    arguments: tuple[Any, ...], keywords: dict[str, Any], is_same: bool
) -> None:
    first = Launch("kernel", (torch.zeros(3), 32, 0.1), {"WIDTH": 8, "area": 16})
    assert (Launch("kernel", arguments, keywords).variant() == first.variant()) == is_same
    assert Launch("other kernel", arguments, keywords).variant() != first.variant()


def test_a_step_on_the_meta_device_needs_every_kernel(triton: None) -> None:
    """The variants of kernels do not depend on the batch, and the step draws no random numbers."""
    state = torch.get_rng_state()
    variants, names = [], set()
    for batch in (16, 48):
        config = override(preset("tiny"), {"runtime.batch": batch})
        launches = [launch for part in iterate_launches(config) for launch in part]
        variants.append({launch.variant()[1:] for launch in launches})
        names |= {launch.kernel.fn.__name__ for launch in launches}
    source = "".join(path.read_text() for path in KERNELS.glob("*.py"))
    assert names == set(re.findall(r"@Recordable\n@triton.jit\ndef (\w+)", source))
    assert variants[0] == variants[1]
    assert torch.equal(state, torch.get_rng_state())


def _make_launches(count: int) -> list[Launch]:
    return [Launch("kernel", (), {"WIDTH": index}) for index in range(count)]


def test_each_variant_is_compiled_once_and_in_parallel() -> None:
    compiled: list[int] = []
    both_threads = threading.Barrier(2, timeout=10)  # Only two simultaneous compilations pass it.

    def compile_launch(launch: Launch) -> None:
        both_threads.wait()
        compiled.append(launch.keywords["WIDTH"])

    batches = [_make_launches(2), _make_launches(4) + _make_launches(4)]
    assert compile_in_threads(batches, compile_launch, 2, threading.Event())
    assert sorted(compiled) == [0, 1, 2, 3]


def test_after_a_stop_no_compilation_is_started() -> None:
    stop, compiled = threading.Event(), []

    def compile_launch(launch: Launch) -> None:
        compiled.append(launch)
        stop.set()

    assert not compile_in_threads([_make_launches(50)], compile_launch, 1, stop)
    assert len(compiled) == 1


def _find_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("selfmark-compile")]


def _wait_for_threads() -> None:
    for thread in _find_threads():
        thread.join(10)


class _FakeCache:
    def __init__(self) -> None:
        self.stored: list[str] = []

    def put(self, data: str, name: str, binary: bool) -> None:
        self.stored.append(name)


@contextmanager
def _compile_with(monkeypatch: pytest.MonkeyPatch, cache: object, compile_launch: Any) -> Iterator[None]:
    """Enter `compile_kernels` of a run that needs three kernels, on a machine with four processors."""
    monkeypatch.setattr(kernel_compilation, "_count_processors", lambda: 4)
    monkeypatch.setattr(kernel_compilation, "_needs_kernels", lambda config, device: True)
    monkeypatch.setattr(kernel_compilation, "_find_cache", cache)
    monkeypatch.setattr(kernel_compilation, "iterate_launches", lambda config: [_make_launches(3)])
    monkeypatch.setattr(Launch, "compile", compile_launch)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.device("cpu"))
    with compile_kernels(preset("fast"), torch.device("cuda")):
        yield


def test_a_finished_compilation_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = _FakeCache()
    compiled: list[Launch] = []
    with _compile_with(monkeypatch, lambda *_: cache, lambda launch: compiled.append(launch)):
        _wait_for_threads()
    assert len(compiled) == 3
    assert cache.stored == ["done"]


def test_a_failed_compilation_is_ignored_and_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = _FakeCache()

    def fail(launch: Launch) -> None:
        raise RuntimeError("there is no C compiler")

    with _compile_with(monkeypatch, lambda *_: cache, fail):
        _wait_for_threads()
    assert cache.stored == []


def test_nothing_is_compiled_if_triton_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ImportError("no module named triton.runtime")

    with _compile_with(monkeypatch, fail, None):
        assert not _find_threads()
    with compile_kernels(preset("fast"), CPU):
        assert not _find_threads()


def test_an_error_of_the_run_stops_the_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        _compile_with(monkeypatch, lambda *_: _FakeCache(), lambda launch: time.sleep(0.1)),
    ):
        raise KeyboardInterrupt
    assert not _find_threads()


@pytest.mark.gpu
def test_the_training_finds_all_kernels_compiled(tmp_path: Path) -> None:
    """Wait for the threads, then train: no kernel may be compiled again."""
    script = """
import threading, torch, triton
from compile_kernels import IMAGES, PAIRS, STEPS, time_training_steps
from selfmark.config import preset
from selfmark.train.kernel_compilation import compile_kernels

config, device, misses = preset("fast"), torch.device("cuda"), []
with compile_kernels(config, device):
    [thread for thread in threading.enumerate() if thread.name == "selfmark-compile"][0].join()
triton.knobs.compilation.listener = lambda src, cache_hit, **_: cache_hit or misses.append(src.name)
time_training_steps(config, device, PAIRS, STEPS, IMAGES)
with compile_kernels(config, device):
    assert not [thread for thread in threading.enumerate() if thread.name == "selfmark-compile"]
print("compiled again:", misses)
"""
    root = Path(__file__).parents[2]
    environment = {
        "PYTHONPATH": f"{root}/src:{root}/benchmarks",
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "compiled again: []"
