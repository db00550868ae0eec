"""How far a result is from the truth, how far it may be, and whether it rounds where and as the contract says."""

from __future__ import annotations

from validator.numerics.binding import Votes
from validator.numerics.drift import Drift
from validator.numerics.judgement import Judged, judge_outputs
from validator.numerics.truth import Truth, truth_of

__all__ = ["Drift", "Judged", "Truth", "Votes", "judge_outputs", "truth_of"]
