"""The model card on disk while several people write to it: every edit reads, changes and writes it whole."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from selfmark.errors import InputError
from selfmark.model.card import ModelCard, read_card, write_card
from selfmark.naming.edits import Edit, apply_edits
from selfmark.run.locks import exclusive


class CardEditor:
    """model.json of one model folder. Nothing is kept in memory, so that nothing can be out of date."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> ModelCard:
        return read_card(self.folder)

    def edit(self, edits: Sequence[Edit]) -> tuple[ModelCard, list[Edit]]:
        """Apply edits and write the card; returns it and the edits that lead back."""
        try:
            # The page of the same run may be open in another process.
            with exclusive(self.folder, wait=True, lock_file=False):
                card, back = apply_edits(self.read(), edits)
                write_card(card, self.folder)
        except OSError as error:
            raise InputError(f"cannot write {self.folder / 'model.json'}: {error.strerror}") from error
        return card, back


def card_revision(card: ModelCard) -> str:
    """Changes whenever anything does that people can say of landmarks."""
    said = (card.names, card.mirror, card.skeleton, card.colors, card.hidden, card.confirmed)
    return hashlib.sha256(repr(said).encode("utf-8", errors="surrogatepass")).hexdigest()[:16]
