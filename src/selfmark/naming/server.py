"""Server of `selfmark name`: prepare the images, open the page in the browser, and serve it until Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import socket
import webbrowser
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path

import uvicorn

from selfmark.errors import InputError
from selfmark.local_page.page_server import build_page_server, open_socket
from selfmark.model.card import ModelCard, is_packaged, landmarks_without_partner, model_folder
from selfmark.naming.app import build_app
from selfmark.naming.card_editor import CardEditor
from selfmark.naming.shown_images import ShownImages, images_fingerprint, load_cached_landmarks, select_images


def name_landmarks(
    folder: Path,
    images: Sequence[str],
    max_images: int,
    port: int,
    browser: bool,
    device: str,
    print_line: Callable[[str], None],
) -> None:
    """Serve the naming page of a run until the user stops it.

    Args:
        folder: run folder or model folder; it must be writable.
        images: images to show instead of those of the run, or the new location of the run's images; if empty,
            the run's images.
        max_images: maximum number of images to show.
        port: port to listen on; 0 for any free port.
        browser: open the page in the browser.
        device: device that predicts the landmarks if they are not stored yet.
        print_line: prints a line for the user.
    """
    if is_packaged(folder):
        raise InputError("the demo model inside selfmark cannot be renamed: save it to a folder of your own")
    model = model_folder(folder)
    editor = CardEditor(model)
    before = editor.read()
    if not (os.access(model, os.W_OK) and os.access(folder, os.W_OK)):
        raise InputError(f"cannot write to {folder}, where names are stored: make it writable or copy it")
    # The port is opened first, so that an error is reported before minutes of prediction.
    with open_socket(port) as listener:
        shown = prepare_images(folder, images, max_images, device)
        address, server = build_server(folder, editor, before, shown, listener)
        with suppress(KeyboardInterrupt):  # raised by the server after Ctrl-C
            print_line(f"naming page: {address}")
            print_line(f"{len(shown):,} images. Every change is saved at once. Stop with Ctrl-C.")
            if browser:
                webbrowser.open(address)
            server.run(sockets=[listener])
    print_line(f"names saved in {model / 'model.json'}")
    for note in describe_outdated_files(folder, before, editor.read()):
        print_line(note)


def prepare_images(folder: Path, images: Sequence[str], max_images: int, device: str) -> ShownImages:
    """Return the images with their landmarks, predicting them in a child process if they are not stored."""
    editor = CardEditor(model_folder(folder))
    card = editor.read()
    refs = select_images(folder, images, max_images)
    fingerprint = images_fingerprint(editor.folder, card, refs)
    shown = load_cached_landmarks(folder, refs, fingerprint, len(card.names))
    if shown is not None:
        return shown
    # In this process, torch would use memory for as long as the page is open.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        try:
            executor.submit(_predict_landmarks, folder, refs, fingerprint, device).result()
        except BrokenProcessPool as error:
            raise InputError(
                "the process that predicts landmarks was killed, perhaps for lack of memory: "
                "show fewer images with --max-images"
            ) from error
    shown = load_cached_landmarks(folder, refs, fingerprint, len(card.names))
    if shown is None:
        raise InputError(f"the predicted landmarks could not be read back from {folder}: is the disk full?")
    return shown


def _predict_landmarks(*arguments: object) -> None:
    from selfmark.naming.landmark_prediction import predict_landmarks

    predict_landmarks(*arguments)  # type: ignore[arg-type]


def build_server(
    folder: Path, editor: CardEditor, before: ModelCard, shown: ShownImages, listener: socket.socket
) -> tuple[str, uvicorn.Server]:
    """Return the address of the page, with its token, and the server to run on the socket.

    Args:
        folder: run folder or model folder.
        editor: reads and writes the model card.
        before: card at the start, to tell the user which files a change has made outdated.
        shown: images with their landmarks.
        listener: socket from `open_socket`.
    """

    def notes(card: ModelCard) -> list[str]:
        return describe_outdated_files(folder, before, card)

    title = folder.resolve().name
    return build_page_server(
        lambda token: build_app(title, editor, shown, notes, token), "selfmark name", listener
    )


def describe_outdated_files(folder: Path, before: ModelCard, now: ModelCard) -> list[str]:
    """Return a message for each file that new mirror partners make outdated, with the command to redo it."""
    is_same_mirror = before.mirror == now.mirror
    if is_same_mirror and landmarks_without_partner(before) == landmarks_without_partner(now):
        return []
    model = model_folder(folder)
    commands = {
        model / "model.onnx": f"the ONNX file with: selfmark export {folder} --onnx",
        model / "model-int8.onnx": f"the 8-bit ONNX file with: selfmark export {folder} --onnx --int8",
        model / "map.json": f"the map to your own points with: selfmark map {folder} --labels FILE",
        folder / "metrics.json": f"the evaluation with: selfmark evaluate {folder} IMAGES",
    }
    changed = "Mirror partners have changed."
    notes = [f"{changed} Redo {command}" for path, command in commands.items() if path.exists()]
    if now.flip_test:  # predictions average each landmark with its partner in the mirrored image
        notes.append(f"{changed} Landmarks move a little: restart 'selfmark name' to see them")
    return notes
