"""Reading a candidate's source without a compiler: tokens, declarations, and rules over them.

The rules are the first net, not the last: they give an author a line number and a reason. What a token cannot show
(which symbols the library imports, whether it keeps writable data) is read from the compiled image instead, and what
slips through both meets the sandbox.
"""

from __future__ import annotations

from validator.source.lexer import SourceProblem, Token, tokenize
from validator.source.scopes import Declaration, scan

__all__ = ["Declaration", "SourceProblem", "Token", "scan", "tokenize"]
