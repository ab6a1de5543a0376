"""Describe trust, verdict and smoothing as entries of exported files."""

from __future__ import annotations

from typing import Any

from selfmark.model.card import SMOOTHING, ModelCard, untrusted_landmarks


def trust_entries(card: ModelCard) -> dict[str, Any]:
    """Return the entries that describe the landmarks of a file.

    - `trust`: trust of each landmark, in the order of the landmarks; left out if trust was not measured.
    - `verdict`: verdict of the run; left out if there is none.
    - `smoothing`: smoothing method; left out if the landmarks are not smoothed.
    """
    method = get_smoothing_method(card)
    return {
        **({"trust": [round(trust, 4) for trust in card.trust]} if card.trust else {}),
        **({} if card.verdict is None else {"verdict": card.verdict}),
        **({"smoothing": method} if method else {}),
    }


def get_smoothing_method(card: ModelCard) -> str:
    """Return the smoothing method of the landmarks; empty if they are not smoothed."""
    return str(card.provenance.get(SMOOTHING, ""))


def name_scorer(name: str, card: ModelCard) -> str:
    """Return the name of a scorer; the smoothing method is appended if the landmarks are smoothed."""
    method = get_smoothing_method(card)
    return f"{name}_{method}" if method else name


def describe_smoothing(card: ModelCard) -> str:
    """Return the smoothing method as text to append to a description; empty if there is none."""
    method = get_smoothing_method(card)
    return f", smoothed ({method})" if method else ""


def format_trust(card: ModelCard, landmark: int) -> str:
    """Return the trust of a landmark as text, with a warning if low; empty if trust was not measured."""
    if not card.trust:
        return ""
    warning = ": do not rely on this landmark" if landmark in untrusted_landmarks(card) else ""
    return f"trust {card.trust[landmark]:.2f}{warning}"
