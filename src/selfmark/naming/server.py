"""Serve `selfmark name` and `correct`: prepare the images, open the page, and run until Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import socket
import webbrowser
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import uvicorn

from selfmark.errors import DiskError, InputError, report_write_errors
from selfmark.image_ref import ImageRef
from selfmark.images.crop import region_sides
from selfmark.local_page.page_server import build_page_server, open_socket
from selfmark.model.card import ModelCard, is_packaged, landmarks_without_partner, model_folder
from selfmark.naming.app import Tool, build_app
from selfmark.naming.card_editor import CardEditor
from selfmark.naming.correction_choice import choose_for_correction
from selfmark.naming.corrections import CorrectedObject, CorrectionFile, get_object_key
from selfmark.naming.shown_images import (
    CACHE_FOLDER,
    ShownImages,
    compute_landmarks_fingerprint,
    load_cached_landmarks,
    select_shown_images,
)
from selfmark.run.files import whole_run
from selfmark.run.guarded_files import make_folder
from selfmark.run.locks import exclusive
from selfmark.wording import describe_count


@dataclass(frozen=True)
class PageOptions:
    """How to serve the page.

    Attributes:
        port: Port to listen on; 0 for any free port.
        browser: Whether to open the page in the browser.
        device: Device that predicts the landmarks if they are not stored yet.
        print_line: Prints a line for the user.
    """

    port: int
    browser: bool
    device: str
    print_line: Callable[[str], None]


def name_landmarks(folder: Path, images: Sequence[str], max_images: int, options: PageOptions) -> None:
    """Serve the naming page of a run until the user stops it.

    Args:
        folder: Run folder or model folder; it must be writable.
        images: Images to show, or the new location of the run's images; empty to show the run's images.
        max_images: Maximum number of images to show.
        options: How to serve the page.
    """
    editor = _open_card(folder, "renamed")
    before = editor.read()

    def prepare() -> ShownImages:
        return prepare_shown_images(folder, select_shown_images(folder, images, max_images), options.device)

    _serve(folder, editor, prepare, "select", options)
    options.print_line(f"names saved in {editor.folder / 'model.json'}")
    with suppress(InputError):  # The detector was replaced meanwhile, for example by `refine`.
        for note in describe_outdated_files(folder, before, editor.read()):
            options.print_line(note)


def correct_landmarks(
    folder: Path, images: Sequence[str], count: int, max_images: int, options: PageOptions
) -> None:
    """Serve the naming page with the images that are most useful to correct, until the user stops it.

    Args:
        folder: Run folder or model folder; it must be writable.
        images: Images to choose from, or the new location of the run's images; empty to choose from the run's
            images.
        count: Number of images to correct, in addition to those that are already done.
        max_images: Maximum number of images to choose from.
        options: How to serve the page.
    """
    editor = _open_card(folder, "corrected")
    corrections = CorrectionFile(folder)
    num_landmarks = len(editor.read().names)
    corrections.read(num_landmarks)  # Report a damaged file now, not after minutes of prediction.

    def prepare() -> ShownImages:
        refs = select_shown_images(folder, images, max_images, "selfmark correct")
        shown = prepare_shown_images(folder, refs, options.device)
        return order_for_correction(shown, corrections.read(num_landmarks), count)

    _serve(folder, editor, prepare, "correct", options)
    corrected = corrections.read(num_landmarks)
    if not corrected:
        options.print_line("nothing was corrected")
        return
    done = sum(item.correction.done for item in corrected)
    options.print_line(
        f"{describe_count(len(corrected), 'corrected image')} ({done} done) in {corrections.path}"
    )
    options.print_line(f"improve the detector with: selfmark refine {folder}")


def order_for_correction(shown: ShownImages, corrected: Sequence[CorrectedObject], count: int) -> ShownImages:
    """Return the images to correct, in three groups.

    First come images with some corrections that are not marked as done, then new images, then images that
    are marked as done.

    Args:
        shown: All images to choose from.
        corrected: Objects that were corrected before.
        count: Number of images in the first two groups together.
    """
    done_by_key = {get_object_key(item.ref): item.correction.done for item in corrected}
    done_states = [done_by_key.get(get_object_key(ref)) for ref in shown.refs]  # None without corrections
    begun = [row for row, state in enumerate(done_states) if state is False]
    done = [row for row, state in enumerate(done_states) if state is True]
    taken = np.array([*begun, *done], dtype=np.int64)
    new = choose_for_correction(
        shown.xy.astype(np.float64),
        shown.score.astype(np.float64),
        region_sides(shown.regions),
        count - len(begun),
        taken,
    )
    return shown.select([*begun, *new, *done])


def _open_card(folder: Path, change: str) -> CardEditor:
    """Return an editor of the model card; raise if the model cannot be changed.

    Args:
        folder: Run folder or model folder.
        change: Participle for the error message, such as "renamed".
    """
    if is_packaged(folder):
        raise InputError(
            f"the demo model inside selfmark cannot be {change}: save it to a folder of your own"
        )
    editor = CardEditor(model_folder(folder))
    editor.read()
    if not (os.access(editor.folder, os.W_OK) and os.access(folder, os.W_OK)):
        raise DiskError(f"cannot write to {folder}, where changes are stored: make it writable or copy it")
    return editor


def _serve(
    folder: Path, editor: CardEditor, prepare: Callable[[], ShownImages], tool: Tool, options: PageOptions
) -> None:
    # Open the port first, so that an error is reported now, not after minutes of prediction.
    with open_socket(options.port) as listener:
        shown = prepare()
        address, server = build_naming_server(folder, editor, editor.read(), shown, listener, tool)
        with suppress(KeyboardInterrupt):  # raised by the server after Ctrl-C
            options.print_line(f"{'naming' if tool == 'select' else 'correction'} page: {address}")
            options.print_line(
                f"{describe_count(len(shown), 'image')}. Every change is saved immediately. Stop with Ctrl-C."
            )
            if options.browser:
                webbrowser.open(address)
            server.run(sockets=[listener])


def prepare_shown_images(folder: Path, refs: Sequence[ImageRef], device: str) -> ShownImages:
    """Return the readable images with their landmarks, which are predicted first if they are not stored."""
    editor = CardEditor(model_folder(folder))
    card = editor.read()
    fingerprint = compute_landmarks_fingerprint(editor.folder, card, refs)
    cache = folder / CACHE_FOLDER
    with report_write_errors(f"to {cache}"):
        make_folder(cache)
        with exclusive(cache, wait=True):  # Another server of the same run may be predicting.
            shown = load_cached_landmarks(folder, refs, fingerprint, len(card.names))
            if shown is not None:
                return shown
            _predict_in_child(folder, refs, fingerprint, device)
            shown = load_cached_landmarks(folder, refs, fingerprint, len(card.names))
    if shown is None:
        raise DiskError(f"the predicted landmarks could not be read back from {folder}: is the disk full?")
    return shown


def _predict_in_child(folder: Path, refs: Sequence[ImageRef], fingerprint: str, device: str) -> None:
    """Predict the landmarks in a child process.

    In this process, torch would occupy memory for as long as the page is open.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        try:
            executor.submit(_predict_landmarks, folder, refs, fingerprint, device).result()
        except BrokenProcessPool as error:
            raise InputError(
                "the process that predicts landmarks was killed, perhaps for lack of memory: "
                "show fewer images with --max-images"
            ) from error
        except BaseException:  # Ctrl-C or SIGTERM: do not wait for minutes until the prediction is done.
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _predict_landmarks(*arguments: object) -> None:
    from selfmark.naming.landmark_prediction import predict_landmarks

    predict_landmarks(*arguments)  # type: ignore[arg-type]


def build_naming_server(
    folder: Path,
    editor: CardEditor,
    before: ModelCard,
    shown: ShownImages,
    listener: socket.socket,
    tool: Tool = "select",
) -> tuple[str, uvicorn.Server]:
    """Return the address of the page, including its token, and the server to run on the socket.

    Args:
        folder: Run folder or model folder.
        editor: Reads and writes the model card.
        before: Card at the start, to tell the user which files a change has made outdated.
        shown: Images with their landmarks.
        listener: Socket from `open_socket`.
        tool: Tool that is active when the page opens.
    """

    def make_notes(card: ModelCard) -> list[str]:
        return describe_outdated_files(folder, before, card)

    title, corrections = folder.resolve().name, CorrectionFile(folder)
    command = "selfmark name" if tool == "select" else "selfmark correct"
    return build_page_server(
        lambda token: build_app(title, editor, shown, corrections, make_notes, tool, token), command, listener
    )


def describe_outdated_files(folder: Path, before: ModelCard, now: ModelCard) -> list[str]:
    """Return a message for each file that is outdated because mirror partners have changed.

    Each message names the command that writes the file again. If predictions depend on mirror partners, one
    more message says that the landmarks on the page are outdated.
    """
    has_same_partners = before.mirror == now.mirror
    if has_same_partners and landmarks_without_partner(before) == landmarks_without_partner(now):
        return []
    model = model_folder(folder)
    commands = {
        model / "model.onnx": f"the ONNX file with: selfmark export {folder} --onnx",
        model / "model-int8.onnx": f"the 8-bit ONNX file with: selfmark export {folder} --onnx --int8",
        model / "map.json": f"the map to your own points with: selfmark map {folder} --labels FILE",
        folder / "metrics.json": f"the evaluation with: selfmark evaluate {whole_run(folder)} IMAGES",
    }
    changed = "Mirror partners have changed."
    notes = [f"{changed} Redo {command}" for path, command in commands.items() if path.exists()]
    if now.flip_test:  # Predictions average each landmark with its partner in the mirrored image.
        notes.append(f"{changed} Stop this command and start it again to see the landmarks that moved")
    return notes
