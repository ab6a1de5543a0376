"""`selfmark name`: from a run folder to a page in the user's browser, and back to a saved model.json."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import socket
import webbrowser
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path

import uvicorn

from selfmark.errors import InputError
from selfmark.model.card import ModelCard, is_packaged, model_folder
from selfmark.naming.app import build_app
from selfmark.naming.card_editor import CardEditor
from selfmark.naming.shown_images import ShownImages, choose_images, images_fingerprint, load_cached_points

HOST = "127.0.0.1"


def name_landmarks(
    folder: Path,
    images: Sequence[str],
    most: int,
    port: int,
    browser: bool,
    device: str,
    say: Callable[[str], None],
) -> None:
    """Serve the naming page of a run until the user ends it.

    Args:
        folder: run folder, or a model folder; it must be the user's own.
        images: what to show instead of the run's images, or where those are now; empty: the run's images.
        most: images shown, at most.
        port: where to listen; 0 takes any free port.
        browser: open the page there.
        device: what finds the landmarks, if they have not been found before.
        say: called with every line for the user.
    """
    if is_packaged(folder):
        raise InputError("the model that comes with selfmark keeps no names: save it to a folder of your own")
    model = model_folder(folder)
    ledger = CardEditor(model)
    before = ledger.read()
    if not (os.access(model, os.W_OK) and os.access(folder, os.W_OK)):
        raise InputError(f"cannot write to {folder}, where names are kept: make it writable or copy it")
    with open_socket(port) as listening:  # before minutes of work, not after
        shown = prepare_images(folder, images, most, device)
        address, server = build_server(folder, ledger, before, shown, listening)
        with suppress(KeyboardInterrupt):  # the usual end; the server raises it when it has ended in order
            say(f"naming page: {address}")
            say(f"{len(shown):,} images; end with Ctrl-C, every change is saved as you make it")
            if browser:
                webbrowser.open(address)
            server.run(sockets=[listening])
    say(f"names are in {model / 'model.json'}")
    for note in list_outdated(folder, before, ledger.read()):
        say(note)


def open_socket(port: int) -> socket.socket:
    """A socket of this machine alone."""
    # Only where the protocol is named does asyncio send answers at once (TCP_NODELAY); else each waits 40 ms.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise InputError(
            f"cannot listen on port {port} ({error.strerror}): choose another with --port"
        ) from error
    return listening


def prepare_images(folder: Path, images: Sequence[str], most: int, device: str) -> ShownImages:
    """The images with their landmarks: as found before, else found now by a process that ends afterwards."""
    ledger = CardEditor(model_folder(folder))
    card = ledger.read()
    refs = choose_images(folder, images, most)
    fingerprint = images_fingerprint(ledger.folder, card, refs)
    kept = load_cached_points(folder, refs, fingerprint, len(card.names))
    if kept is not None:
        return kept
    # Torch would stay in this process's memory for as long as the page is open.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
        try:
            other.submit(_find_landmarks, folder, refs, fingerprint, device).result()
        except BrokenProcessPool as error:
            raise InputError(
                "finding the landmarks was ended from outside; show fewer images with --most"
            ) from error
    kept = load_cached_points(folder, refs, fingerprint, len(card.names))
    if kept is None:
        raise InputError(f"the landmarks found could not be read back from {folder}: is its disk full?")
    return kept


def _find_landmarks(*arguments: object) -> None:
    from selfmark.naming.landmark_finder import find_landmarks

    find_landmarks(*arguments)  # type: ignore[arg-type]


def build_server(
    folder: Path, ledger: CardEditor, before: ModelCard, shown: ShownImages, listening: socket.socket
) -> tuple[str, uvicorn.Server]:
    """The address with its token, and the server to run on the socket."""
    token, port = secrets.token_urlsafe(32), listening.getsockname()[1]

    def notes(card: ModelCard) -> list[str]:
        return list_outdated(folder, before, card)

    app = build_app(folder.resolve().name, ledger, shown, notes, token, port)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # it would hold the token
        server_header=False,
        lifespan="off",
        loop="asyncio",
        http="h11",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    return f"http://{HOST}:{port}/?token={token}", uvicorn.Server(config)


def list_outdated(folder: Path, before: ModelCard, now: ModelCard) -> list[str]:
    """What was made with other mirror partners and no longer fits, and the command that makes it anew."""
    if before.mirror == now.mirror:
        return []
    model = model_folder(folder)
    made = {
        model / "model.onnx": f"the ONNX file: selfmark export {folder} --onnx",
        model / "model-int8.onnx": f"the 8-bit ONNX file: selfmark export {folder} --onnx --int8",
        model / "map.json": f"the map to your own points: selfmark map {folder} --labels FILE",
        folder / "metrics.json": f"the evaluation: selfmark evaluate {folder} IMAGES",
    }
    changed = "mirror partners have changed"
    redo = [f"{changed}, so make anew {what}" for path, what in made.items() if path.exists()]
    if now.flip_test:  # each landmark is averaged with its partner in the mirrored image
        redo.append(f"{changed}, so landmarks move a little: end and start 'selfmark name' to see them anew")
    return redo
