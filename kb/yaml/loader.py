"""The strict loader: bytes in, a Document out, whatever the bytes are."""

from __future__ import annotations

from pathlib import Path

from kb.yaml.compose import compose
from kb.yaml.document import Document
from kb.yaml.source import Problem, check_size, decode, forbidden_characters, read_bytes

# After these the parser would only add noise about the same spot.
_HOPELESS = {"AC002", "AC003", "AC006", "AC007"}
_SPACES = str.maketrans("\t\r", "  ")


def load_file(path: Path) -> Document:
    """Read and parse a file. Never raises: what is wrong is in ``problems``."""
    data, problems = read_bytes(path)
    if problems:
        return Document(data[:0].decode(), None, None, problems)
    return load_bytes(data)


def load_bytes(data: bytes) -> Document:
    """Parse a file's bytes. Never raises."""
    if problems := check_size(data):
        return Document("", None, None, problems)
    text, problems = decode(data)
    return _parse(text, problems)


def load_text(text: str) -> Document:
    """Parse a text. Never raises."""
    return _parse(text, [])


def _parse(text: str, problems: list[Problem]) -> Document:
    problems = problems or forbidden_characters(text)
    if any(p.code in _HOPELESS for p in problems):
        return Document(text, None, None, problems)
    # Spaces instead of tabs and carriage returns keep every place and let the rest of the file be checked.
    composer = compose(text.translate(_SPACES) if problems else text)
    # A tab that was indentation breaks the structure; that is said already.
    problems = [*problems, *(p for p in composer.problems if not problems or p.code != "AC011")]
    value = composer.value
    if composer.root is None and not problems:
        problems.append(Problem("AC010", 0, "the file has no content", "write an entry or remove the file"))
    elif not isinstance(value, dict) and composer.root is not None and not problems:
        problems.append(Problem("AC012", composer.root.start, "the file is not a mapping of fields"))
    if problems or not isinstance(value, dict):
        return Document(text, None, composer.root, problems)
    return Document(text, value, composer.root, [])
