"""AC001 to AC009 and AC026: what must not be in a file before any parser sees it."""

from __future__ import annotations

from kb.lint.example import block, raw
from kb.lint.rule import LoaderRule


class UnreadableFile(LoaderRule):
    """A file cannot be read.

    The file vanished, may not be read, or is no regular file. Nothing is known of its content, so the run ends
    with exit code 2. Fix the permission, or remove what is not an entry.
    """

    code = "AC001"
    bad = ()  # needs a file system; the command's tests make one
    good = (block(),)


class NotUtf8(LoaderRule):
    """A file is not UTF-8.

    Every reader must see the same characters. Save the file as UTF-8; the message names the first byte that is not.
    """

    code = "AC002"
    bad = (raw(b"id: demo/wide-loads\ntitle: caf\xe9\n"),)
    good = (block(title="Café au lait"),)


class ByteOrderMark(LoaderRule):
    """A file starts with a byte order mark.

    Some tools show it, some drop it on the next save, and a digest over the bytes changes with it.
    """

    code = "AC003"
    bad = (raw("\ufeffid: demo/wide-loads\n"),)
    good = (block(),)


class CarriageReturn(LoaderRule):
    """A line ends with a carriage return.

    CRLF line ends vanish on a round trip and make every line of a diff differ. Use LF; in git, ``* text=auto eol=lf``.
    """

    code = "AC004"
    bad = (raw("id: demo/wide-loads\r\n"),)
    good = (block(),)


class TabCharacter(LoaderRule):
    """A tab character.

    YAML forbids tabs as indentation and allows them elsewhere, where nobody sees the difference. Use spaces.
    """

    code = "AC005"
    bad = (raw("id:\tdemo/wide-loads\n"),)
    good = (block(),)


class ControlCharacter(LoaderRule):
    """A control or unassigned character.

    NUL, ESC and their like cannot be seen, end strings early in C programs and recolour a reviewer's terminal.
    """

    code = "AC006"
    bad = (raw("id: demo/wide-loads\ntitle: wide\x1b[31m loads\n"), raw("id: demo/\x00wide\n"))
    good = (block(),)


class LineSeparator(LoaderRule):
    """A Unicode line separator.

    U+0085, U+2028 and U+2029 end a line for some YAML readers and not for others; a dump changes the value.
    """

    code = "AC007"
    bad = (raw("id: demo/wide-loads\ntitle: wide\u2028loads\n"),)
    good = (block(),)


class InvisibleCharacter(LoaderRule):
    """An invisible or direction-changing character.

    Zero-width and bidirectional characters make a reviewer read something else than a program does; a no-break space
    looks like a space and is none.
    """

    code = "AC008"
    bad = (
        raw("id: demo/wide-loads\ntitle: wide\u200bloads\n"),
        raw("id: demo/wide-loads\ntitle: \u202esdaol\n"),
        raw("id: demo/wide-loads\ntitle: wide\u00a0loads\n"),
    )
    good = (block(title="Loads of 2 × 16 bytes – Σ over 4 µs"),)


class OversizedFile(LoaderRule):
    """A file is larger than one entry can be.

    256 KiB is a hundred times a long entry. What is larger is something else, or a denial of service.
    """

    code = "AC009"
    bad = (raw("# " + "x" * 262_144 + "\n", shown="# a comment of 256 KiB"),)
    good = (block(),)


class LostInComment(LoaderRule):
    """The end of an unquoted text is lost in a comment.

    ``see issue #12`` is the text ``see issue``: a ``#`` behind a space starts a comment. Quote the text, or, where a
    comment is meant, put a space behind the ``#``.
    """

    code = "AC026"
    bad = (block(title="Wide loads, see #12"),)
    good = (block(title='"Wide loads, see #12"'), block(title="Wide loads # after a long search"))
