"""A review as text and as Markdown: the same sections in the same order."""

from __future__ import annotations

from kb.diagnostic import Diagnostic
from kb.diff.show import as_markdown as diff_markdown
from kb.diff.show import as_text as diff_text
from kb.markdown import code_span, escape
from kb.review.report import PromptChange, Review


def review_text(review: Review) -> str:
    """Several lines for a terminal."""
    lines = [f"findings: {_findings_line(review)}"]
    lines += [f"  {finding}" for finding in review.findings]
    lines += ["", "changes", diff_text(review.diff).rstrip(), "", f"prompts touched: {_prompts_line(review)}"]
    for prompt in review.prompts or ():
        lines.append(f"  {prompt.contract} on {prompt.target.value}: {_tokens(prompt)}")
        lines += [f"    {sign} {id_}" for sign, id_ in _moves(prompt)]
        lines += [f"    {_remark(prompt)}"] if _remark(prompt) else []
    lines += ["", f"kernels made stale: {len(review.stale) or 'none'}"]
    for kernel in review.stale:
        lines.append(f"  {kernel.digest[:12]}  {kernel.contract} on {kernel.target.value}")
        lines += [f"    {reason}" for reason in kernel.reasons]
    lines += [f"  damaged, not looked at: {line}" for line in review.damaged]
    return "\n".join(lines) + "\n"


def review_markdown(review: Review) -> str:
    """A report for a pull request."""
    diff = review.diff
    lines = [f"# Knowledge base review: {code_span(diff.base)} to {code_span(diff.head)}", ""]
    lines += ["## Findings", "", f"{_sentence(_findings_line(review))}", ""]
    if review.findings:
        lines += ["| place | finding |", "|---|---|", *(_finding_row(f) for f in review.findings), ""]
    lines += ["## Changes", "", diff_markdown(diff), "## Prompts touched", "", _sentence(_prompts_line(review)), ""]
    if review.prompts:
        lines += ["| contract | target | tokens | blocks |", "|---|---|---|---|"]
        for prompt in review.prompts:
            blocks = "<br>".join(f"{escape(sign)} {code_span(id_)}" for sign, id_ in _moves(prompt)) or escape(
                prompt.note
            )
            lines.append(f"| {code_span(prompt.contract)} | {prompt.target.value} | {_tokens(prompt)} | {blocks} |")
        lines.append("")
    lines += ["## Kernels made stale", ""]
    if review.stale:
        lines += ["| kernel | contract | target | because |", "|---|---|---|---|"]
        for kernel in review.stale:
            reasons = "<br>".join(escape(reason) for reason in kernel.reasons)
            digest = code_span(kernel.digest[:12])
            lines.append(f"| {digest} | {code_span(kernel.contract)} | {kernel.target.value} | {reasons} |")
    else:
        lines.append("None.")
    lines += [f"\nDamaged and not looked at: {escape(line)}" for line in review.damaged]
    return "\n".join(lines) + "\n"


def _finding_row(finding: Diagnostic) -> str:
    place = f"{finding.path}:{finding.line}:{finding.column}" if finding.line else finding.path
    text = finding.message + (f" ({finding.fix})" if finding.fix else "")
    return f"| {code_span(place)} | {finding.severity.value} {finding.code}: {escape(text)} |"


def _findings_line(review: Review) -> str:
    known = f"; {review.known_findings} more were there before" if review.known_findings else ""
    count = len(review.findings)
    return (f"{count} new finding{'' if count == 1 else 's'}" if count else "no new findings") + known


def _prompts_line(review: Review) -> str:
    if review.prompts is None:
        return "not known, this installation cannot render prompts"
    return str(len(review.prompts)) if review.prompts else "none"


def _tokens(prompt: PromptChange) -> str:
    before, after = prompt.tokens_before, prompt.tokens_after
    if before is None or after is None:
        return f"{'no prompt' if before is None else before} → {'no prompt' if after is None else after}"
    return f"{before} → {after} ({after - before:+d})"


def _moves(prompt: PromptChange) -> list[tuple[str, str]]:
    moves = [("+", prompt.entered), ("-", prompt.left), ("~", prompt.reworded)]
    return [(sign, id_) for sign, ids in moves for id_ in ids]


def _remark(prompt: PromptChange) -> str:
    return prompt.note or ("" if _moves(prompt) else "the same blocks, worded differently")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
