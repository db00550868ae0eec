"""How far a result is from the truth, how far it may be, and whether it rounds where the contract says so."""

from __future__ import annotations

from validator.numerics.binding import Votes
from validator.numerics.judgement import Judged, judge_outputs
from validator.numerics.truth import Truth, truth_of

__all__ = ["Judged", "Truth", "Votes", "judge_outputs", "truth_of"]
