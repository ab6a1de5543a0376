"""Trust and verdict as entries of exported files."""

from __future__ import annotations

from typing import Any

from selfmark.model.card import ModelCard, untrusted_landmarks


def trust_entries(card: ModelCard) -> dict[str, Any]:
    """Return `trust`, a list in the order of the landmarks, and `verdict`; each only if it was measured."""
    return {
        **({"trust": [round(trust, 4) for trust in card.trust]} if card.trust else {}),
        **({} if card.verdict is None else {"verdict": card.verdict}),
    }


def describe_trust(card: ModelCard, landmark: int) -> str:
    """Return the trust of a landmark as text, with a warning if it is low; empty if it was not measured."""
    if not card.trust:
        return ""
    warning = ": do not rely on this landmark" if landmark in untrusted_landmarks(card) else ""
    return f"trust {card.trust[landmark]:.2f}{warning}"
