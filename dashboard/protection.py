"""What so few learners are not protected from, in a sentence (docs/trust.md)."""

from __future__ import annotations

from collections.abc import Mapping

UNPROTECTED: Mapping[int, str] = {
    1: "One learner trains: nobody checks what it does.",
    2: "Two learners train: neither can outvote the other; if their gradients oppose each other, or"
    " differ grossly in length, both stop.",
    3: "Three learners train: they outvote one that lies, until one of them goes.",
}
"""Learners that are here -> what to know. From four on one may go, and one lie."""
