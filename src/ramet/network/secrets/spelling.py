"""How a server may spell a value that it repeats: as it is, escaped for a URL, JSON or HTML, in hexadecimal or base64.

Each character may be escaped in its own way, because no two libraries escape the same ones: ``encodeURIComponent``
leaves ``!`` alone, PHP writes ``\\/`` in JSON, Go ``\\u0026``, templates ``&#43;`` in HTML.

No library escapes letters, digits and ``-._~``, so these are searched as they are. A program that can make a server
escape every letter can make it spell the value in a thousand other ways. Keeping values from such servers is up to the
places that they are put into, not to this search.
"""

from __future__ import annotations

import re
import string
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from ramet.network.secrets.work_budget import WorkBudget
from ramet.protocol.lazy_dataclasses import dataclass

_NEVER_ESCAPED = frozenset(string.ascii_letters + string.digits + "-._~")
# Upper bounds for one character: "&amp;#x0000002f;", and "\\\ud83d\\\ude00" or the like for each byte.
_ESCAPED_BYTES_AT_MOST = 18
_ESCAPED_BEYOND_ASCII_AT_MOST = 40
# Encoders for mail, and GitHub, break lines: with a line end, or with one that JSON has escaped.
_LINE_END = rb"(?:(?:\\{1,3}r)?\\{1,3}n|\r?\n)"
_LINE_END_AT_MOST = 8
LETTERS_PER_LINE_AT_LEAST = 40  # 60, 64 and 76 are in use
# Shorter ones would match everywhere.
_ENCODED_AT_LEAST = 6
# This much is found with a regular expression; the rest is compared. It is longer than the known prefix of a kind of
# key ("ghp_"), or a program could make it match everywhere. But expressions for characters that may be escaped take
# long to compile.
_BEGINNING_CHARACTERS = 8
_BEGINNING_ESCAPED_AT_MOST = 2
# The first bytes of escapes, and of misread characters beyond ASCII.
_ESCAPES_BEGIN = b"%&\\+\xc2\xc3"

# Comparing a text costs one step, plus one for this many of its bytes.
_BYTES_PER_STEP = 256
_BASE64_PER_STEP = 64  # base64 is compared piece by piece
_STEPS_TO_COMPILE = 3000
_COMPILED_AT_MOST = 2048

_BASE64_LETTERS = re.compile(rb"[A-Za-z0-9+/_-]+")
_BETWEEN_LETTERS = re.compile(_LINE_END)
_ONE_BASE64_ALPHABET = bytes.maketrans(b"-_", b"+/")

Span = tuple[int, int]
Unit = Sequence[bytes]  # expressions for the spellings of one character, longer ones first
# Where a spelling ends that begins at a given place. 0: none does.
EndOf = Callable[[bytes, int, WorkBudget], int]
# Expressions for the spellings of one character, by their first byte.
ByBeginning = dict[int, tuple[re.Pattern[bytes], ...]]


@dataclass(frozen=True, slots=True)
class _Base64Form:
    """The letters that a value alone determines, and whether the letters next to them contain bits of it too."""

    letters: str
    bits_before: bool
    bits_behind: bool

    @property
    def bytes_at_most(self) -> int:
        plain = sum(map(_bytes_at_most, self.letters)) + _ESCAPED_BYTES_AT_MOST * (self.bits_before + self.bits_behind)
        return plain + (len(self.letters) // LETTERS_PER_LINE_AT_LEAST + 4) * _LINE_END_AT_MOST


class Spellings:
    """All spellings of one value."""

    def __init__(self, value: str) -> None:
        plain = value.encode()
        self.bytes_at_most = max(sum(map(_bytes_at_most, value)), len(plain) * 2)
        # Each begins with a literal, so that a search skips everything else.
        self.beginnings = _joined([_unit(character) for character in _beginning(value)], b"")
        # By first byte; and whether a base64 letter before it belongs to the value.
        self._ends: defaultdict[int, list[tuple[EndOf, bool]]] = defaultdict(list)
        self._add(value[0], _escaped_text(value))
        if len(plain) * 2 >= _ENCODED_AT_LEAST:
            for digits in (plain.hex().encode(), plain.hex().upper().encode()):
                self.beginnings.append(digits[: 2 * _BEGINNING_CHARACTERS])
                self._add(chr(digits[0]), _literal(digits))
        for form in _base64_forms(plain):
            units = [_base64_unit(letter) for letter in _beginning(form.letters)]
            self.beginnings += _joined(units, _LINE_END + b"?")
            self._add(form.letters[0], _base64_text(form), form.bits_before)
            self.bytes_at_most = max(self.bytes_at_most, form.bytes_at_most)

    def __repr__(self) -> str:
        return f"<Spellings, {len(self._ends)}>"

    def spans(self, data: bytes, start: int, budget: WorkBudget) -> Iterator[Span]:
        """The ranges of the value's spellings that begin at ``start``. Raises TooAlike."""
        for end_of, bits_before in self._ends.get(data[start], ()):
            if end := end_of(data, start, budget):
                before = _LETTER_BEFORE.search(data, max(0, start - _LETTER_AT_MOST), start) if bits_before else None
                yield start if before is None else before.start(), end

    def _add(self, first: str, end: EndOf, bits_before: bool = False) -> None:
        begins = first.encode()[:1] + (b"" if first in _NEVER_ESCAPED else _ESCAPES_BEGIN + b"-_")
        for byte in set(begins):
            self._ends[byte].append((end, bits_before))


@lru_cache(maxsize=256)
def spellings(value: str) -> Spellings:
    return Spellings(value)


def forget() -> None:
    """Drop values from the cache that no sandbox has any more. Others are computed again when needed."""
    spellings.cache_clear()


def _literal(text: bytes) -> EndOf:
    def end(data: bytes, start: int, budget: WorkBudget) -> int:
        budget.spend(1 + len(text) // _BYTES_PER_STEP)
        return start + len(text) if data.startswith(text, start) else 0

    return end


def _escaped_text(value: str) -> EndOf:
    """Match a text in which each character is spelled in any of its ways.

    All alternatives are followed at once, because a value may itself look escaped.
    """
    parts = [run.encode() if run[0] in _NEVER_ESCAPED else run for run in re.findall(r"[A-Za-z0-9._~-]+|.", value)]

    def end(data: bytes, start: int, budget: WorkBudget) -> int:
        reached = {start}
        for part in parts:
            if isinstance(part, bytes):
                budget.spend(len(reached) * (1 + len(part) // _BYTES_PER_STEP))
                reached = {at + len(part) for at in reached if data.startswith(part, at)}
            else:
                known = _compiled(part, budget)
                tried = [(spelling, at) for at in reached for spelling in known.get(_byte_at(data, at), ())]
                budget.spend(len(reached) + len(tried))
                matches = [spelling.match(data, at) for spelling, at in tried]
                reached = {match.end() for match in matches if match is not None}
            if not reached:
                return 0
        return max(reached)

    return end


def _base64_text(form: _Base64Form) -> EndOf:
    letters = form.letters
    wanted = letters.encode()
    escaped = {letter: re.compile(_one_of(_base64_unit(letter))) for letter in "+/"}

    def end(data: bytes, at: int, budget: WorkBudget) -> int:
        done = 0
        while done < len(wanted):
            budget.spend(1)
            match = _BASE64_LETTERS.match(data, at, at + min(len(wanted) - done, _BASE64_PER_STEP))
            if match is not None:
                found = match[0].translate(_ONE_BASE64_ALPHABET)
                if not wanted.startswith(found, done):
                    return 0
                done += len(found)
            else:
                match = _BETWEEN_LETTERS.match(data, at) if done else None
                if match is None:
                    pattern = escaped.get(letters[done])
                    match = pattern.match(data, at) if pattern is not None else None
                    done += 1
                if match is None:
                    return 0
            at = match.end()
        behind = _LETTER_BEHIND.match(data, at) if form.bits_behind else None
        return at if behind is None else behind.end()

    return end


def _beginning(text: str) -> str:
    escaped = [at for at, character in enumerate(text[:_BEGINNING_CHARACTERS]) if character not in _NEVER_ESCAPED]
    too_many = escaped[_BEGINNING_ESCAPED_AT_MOST:]
    return text[: too_many[0] if too_many else _BEGINNING_CHARACTERS]


def _joined(units: Sequence[Unit], between: bytes) -> list[bytes]:
    rest = b"".join(between + _one_of(unit) for unit in units[1:])
    return [first + rest for first in units[0]]


def _one_of(unit: Unit) -> bytes:
    return unit[0] if len(unit) == 1 else b"(?:" + b"|".join(unit) + b")"


_known: dict[str, ByBeginning] = {}


def _compiled(character: str, budget: WorkBudget) -> ByBeginning:
    """Compiled expressions for one character.

    Compiled on first use: a value may contain thousands of different ones.
    """
    known = _known.get(character)
    if known is None:
        budget.spend(_STEPS_TO_COMPILE)
        if len(_known) >= _COMPILED_AT_MOST:
            _known.clear()
        found: defaultdict[int, list[re.Pattern[bytes]]] = defaultdict(list)
        for text in _unit(character):
            # Each begins with a literal byte, plain or after a backslash.
            found[text[text.startswith(b"\\")]].append(re.compile(text))
        known = _known[character] = {byte: tuple(some) for byte, some in found.items()}
    return known


def _byte_at(data: bytes, at: int) -> int:
    return data[at] if at < len(data) else -1


def _bytes_at_most(character: str) -> int:
    if character in _NEVER_ESCAPED:
        return 1
    return _ESCAPED_BYTES_AT_MOST if character.isascii() else _ESCAPED_BEYOND_ASCII_AT_MOST


def _unit(character: str) -> Unit:
    plain = character.encode()
    if character in _NEVER_ESCAPED:
        return (re.escape(plain),)
    found = [b"".join(percent + _digits(f"{byte:02x}") for byte in plain) for percent in (b"%", b"%25")]
    found += _in_json(character) + _in_html(character)
    if character == " ":
        found.append(rb"\+")
    if not character.isascii():
        # Misread as Latin-1, as header values are, and encoded again.
        misread = plain.decode("latin-1")
        found += [*_in_json(misread), re.escape(misread.encode())]
    return (*found, re.escape(plain))


def _in_json(text: str) -> list[bytes]:
    """JSON escapes, including those of JSON inside a JSON string."""
    units = [_digits(unit) for unit in text.encode("utf-16-be").hex(" ", 2).split()]
    found = [b"".join(backslashes + b"u" + unit for unit in units) for backslashes in (rb"\\", rb"\\\\")]
    if text == "\\":
        found += [rb"\\" * 4, rb"\\" * 2]
    elif text in "\"'/":
        found += [rb"\\" * count + text.encode() for count in (3, 2, 1)]
    return found


def _in_html(character: str) -> list[bytes]:
    number = ord(character)
    names = [b"#[xX]0{0,4}" + _digits(f"{number:x}"), b"#0{0,2}%d" % number]
    names += {"&": [b"amp"], "<": [b"lt"], ">": [b"gt"], '"': [b"quot"], "'": [b"apos"]}.get(character, [])
    return [ampersand + name + b";" for ampersand in (b"&amp;", b"&") for name in names]


def _digits(text: str) -> bytes:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in text).encode()


def _base64_unit(letter: str) -> Unit:
    if letter in _NEVER_ESCAPED:
        return (letter.encode(),)
    return (*_unit(letter), b"-" if letter == "+" else b"_")


def _base64_forms(plain: bytes) -> list[_Base64Form]:
    """The base64 encodings of a value in the middle of something longer, at each of three offsets.

    The letters at its ends may depend on what surrounds it. Of these only the position is known.
    """
    forms: list[_Base64Form] = []
    for before in range(3):
        encoded = b64encode(bytes(before) + plain).rstrip(b"=")
        first = (0, 2, 3)[before]
        bits_behind = len(encoded) * 6 > (before + len(plain)) * 8
        last = len(encoded) - bits_behind
        if last - first >= _ENCODED_AT_LEAST:
            forms.append(_Base64Form(encoded[first:last].decode(), before > 0, bits_behind))
    return forms


_ANY_LETTER = b"(?:" + b"|".join((*_base64_unit("+"), *_base64_unit("/"), b"[A-Za-z0-9]")) + b")"
_LETTER_BEHIND = re.compile(_LINE_END + b"?" + _ANY_LETTER)
_LETTER_BEFORE = re.compile(_ANY_LETTER + _LINE_END + rb"?\Z")
_LETTER_AT_MOST = _ESCAPED_BYTES_AT_MOST + _LINE_END_AT_MOST
