"""The names of honest and of lying learners."""

from __future__ import annotations

from lab.studies.liars.adversaries import Attacked

HONEST = ("learner-0", "learner-1", "learner-2")


LIAR = Attacked(attack="", defended=True, seconds=0.0).liar
