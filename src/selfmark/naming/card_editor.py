"""Let several users edit model.json: each edit reads, changes and replaces the file under a lock."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

from selfmark.errors import InputError, report_write_errors
from selfmark.model.card import ModelCard, read_card, write_card
from selfmark.naming.edits import Edit, apply_edits
from selfmark.run.files import require_folder
from selfmark.run.guarded_files import FileState, open_folder, read_file_state
from selfmark.run.locks import exclusive


class CardEditor:
    """Reader and writer of model.json in one model folder.

    The card is not kept in memory: every read returns what is on disk.
    """

    def __init__(self, folder: Path) -> None:
        """Create an editor of model.json in a model folder.

        Raises:
            InputError: if the folder does not exist.
        """
        require_folder(folder)
        self.folder = folder
        # Keep the folder open, so that the file system gives its inode number to no other folder. `read`
        # compares these numbers.
        with open_folder(folder) as descriptor:
            self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)
        self._weights_state = self._read_weights_state()

    def read(self) -> ModelCard:
        """Return the card that is on disk now.

        Raises:
            InputError: if the card cannot be read, or if another model folder has been put in the place of
                this one, or if the weights have changed, for example because of `selfmark refine`. The
                landmarks that the page shows do not belong to the other detector.
        """
        card = read_card(self.folder)
        is_same_folder = os.path.samestat(self.folder.stat(), os.fstat(self._descriptor))
        if not is_same_folder or self._read_weights_state() != self._weights_state:
            raise InputError(
                f"another detector was put into {self.folder} while this page was open, for example by "
                "'selfmark refine'; stop the command and start it again"
            )
        return card

    def _read_weights_state(self) -> FileState | None:
        return read_file_state(self.folder / "weights.safetensors")

    def edit(self, edits: Sequence[Edit]) -> tuple[ModelCard, list[Edit]]:
        """Apply edits and write the card.

        Returns:
            The new card, and the edits that undo the change.
        """
        # Another process may edit the same card. Lock the folder itself, because a lock file would stay in
        # the model folder.
        with (
            report_write_errors(self.folder / "model.json"),
            exclusive(self.folder, wait=True, lock_file=False),
        ):
            card, undo = apply_edits(self.read(), edits)
            write_card(card, self.folder)
        return card, undo


def compute_card_revision(card: ModelCard) -> str:
    """Return a digest of everything in the card that users can edit."""
    editable = (card.names, card.mirror, card.skeleton, card.colors, card.hidden, card.confirmed)
    return hashlib.sha256(repr(editable).encode("utf-8", errors="surrogatepass")).hexdigest()[:16]
