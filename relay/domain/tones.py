"""The tone of a state: good, busy, warn, bad or quiet. Every face shows the word, too, beside its colour."""

from __future__ import annotations

from typing import Final

_TONES: Final = {
    "good": "published processed completed requeued resolved finished working stored done yes healthy there ok"
    " runs",
    "busy": "running delivered started waiting delayed pending starting ending",
    "warn": "failing retrying put-off skipped missed warning warn warned unknown parked held discarded expired"
    " paused limited ticket",
    "bad": "dead failed open lost error refused missing dead-letter down page",
}
_TONE_OF: Final = {state: tone for tone, states in _TONES.items() for state in states.split()}


def tone(state: object) -> str:
    """Return the tone of a state."""
    return _TONE_OF.get(str(state).lower().replace(" ", "-"), "quiet")
