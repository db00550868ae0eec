"""One report for a pull request: findings, what changed, which prompts it touches, which kernels it makes stale."""

from kb.review.report import PromptChange, PromptFacts, Review, StaleKernel, changed_prompts, made_stale, new_findings

__all__ = ["PromptChange", "PromptFacts", "Review", "StaleKernel", "changed_prompts", "made_stale", "new_findings"]
