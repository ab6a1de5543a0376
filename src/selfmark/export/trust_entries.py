"""Trust, verdict and smoothing as entries of exported files."""

from __future__ import annotations

from typing import Any

from selfmark.model.card import SMOOTHING, ModelCard, untrusted_landmarks


def trust_entries(card: ModelCard) -> dict[str, Any]:
    """Return the entries that describe the landmarks of a file.

    They are `trust`, a list in the order of the landmarks, and `verdict`, each only if it was measured, and
    `smoothing`, the method, only if the landmarks are smoothed.
    """
    method = smoothing_method(card)
    return {
        **({"trust": [round(trust, 4) for trust in card.trust]} if card.trust else {}),
        **({} if card.verdict is None else {"verdict": card.verdict}),
        **({"smoothing": method} if method else {}),
    }


def smoothing_method(card: ModelCard) -> str:
    """Return how the landmarks of a file are smoothed; empty if they are as the detector predicts them."""
    return str(card.provenance.get(SMOOTHING, ""))


def describe_smoothing(card: ModelCard) -> str:
    """Return the smoothing as text that follows a name or a sentence; empty if there is none."""
    method = smoothing_method(card)
    return f", smoothed ({method})" if method else ""


def describe_trust(card: ModelCard, landmark: int) -> str:
    """Return the trust of a landmark as text, with a warning if it is low; empty if it was not measured."""
    if not card.trust:
        return ""
    warning = ": do not rely on this landmark" if landmark in untrusted_landmarks(card) else ""
    return f"trust {card.trust[landmark]:.2f}{warning}"
