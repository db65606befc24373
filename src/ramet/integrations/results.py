"""Turns the result of a tool into what a model reads: one text, and images beside it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field

from ramet import Result, RichResult
from ramet.integrations.bounding import bounded

# Guesses: some 5000 tokens for stdout, a third of that for each other part.
PRINTED_CHARACTERS = 20_000
OTHER_CHARACTERS = 7_000
# Limits of providers: 5 MB for an image in base64, about 20 images in a message.
IMAGE_BYTES = 3_500_000
IMAGE_COUNT = 16
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


@dataclass(frozen=True, slots=True)
class ModelImage:
    """A picture for a model that can see."""

    media_type: str
    data: bytes = field(repr=False)

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode("ascii")

    @property
    def url(self) -> str:
        return f"data:{self.media_type};base64,{self.base64}"


@dataclass(frozen=True, slots=True)
class Shown:
    """The answer for a model. ``failed``: the code or the file operation failed."""

    text: str
    images: tuple[ModelImage, ...] = ()
    failed: bool = False
    result: Result | None = None  # if a cell ran


def show(result: Result, stdout: str | None = None, stderr: str | None = None) -> Shown:
    """Show a cell's result: its output, displays, value and error, and what happened to the REPL.

    ``stdout`` and ``stderr``, already cut to their limits, replace those of the result.
    """
    images, left_out = _images(result)
    printed = bounded(result.stdout, PRINTED_CHARACTERS) if stdout is None else stdout
    complained = bounded(result.stderr, OTHER_CHARACTERS) if stderr is None else stderr
    parts = [
        printed.rstrip("\n"),
        *(bounded(text, OTHER_CHARACTERS) for text in _displayed(result)),
        _titled("value", bounded(_value(result), OTHER_CHARACTERS)),
        _titled("stderr", complained.rstrip("\n")),
        _titled(
            "printed in the background since the last cell", bounded(result.background, OTHER_CHARACTERS).rstrip("\n")
        ),
        *_notes(result, len(images), left_out),
    ]
    text = "\n".join(part for part in parts if part)
    return Shown(text or "(no output)", images, not result.ok, result)


def _titled(title: str, text: str) -> str:
    if not text:
        return ""
    return f"{title}:\n{text}" if "\n" in text else f"{title}: {text}"


def _displayed(result: Result) -> Iterator[str]:
    """The texts of displayed objects without a picture. The text of a figure only says that it is a figure."""
    for one in result.results:
        if one.what == "display" and one.readable and _image(one) is None:
            yield one.readable


def _value(result: Result) -> str:
    value = result.value or ""
    return next((one.readable for one in result.results if one.what == "value" and one.readable), value)


def _images(result: Result) -> tuple[tuple[ModelImage, ...], int]:
    """The images within the limits, and the number of the others."""
    found = [image for one in result.results if (image := _image(one)) is not None]
    fitting = [image for image in found if len(image.data) <= IMAGE_BYTES][:IMAGE_COUNT]
    return tuple(fitting), len(found) - len(fitting)


def _image(one: RichResult) -> ModelImage | None:
    for media_type in _IMAGE_TYPES:
        data = one.data.get(media_type)
        if isinstance(data, bytes):
            return ModelImage(media_type, data)
    return None


def _notes(result: Result, images: int, images_left_out: int) -> Iterator[str]:
    if images:
        yield f"({images} image{'s' if images > 1 else ''})"
    if images_left_out:
        yield f"({images_left_out} images left out: more than {IMAGE_COUNT}, or larger than {IMAGE_BYTES} bytes)"
    if result.truncated is not None:
        paths = [path for path in (result.truncated.stdout_path, result.truncated.stderr_path) if path is not None]
        yield f"(more was printed than is kept{'; all of it is in ' + ' and '.join(paths) if paths else ''})"
    if result.cause == "timeout":
        yield f"(interrupted at its timeout, after {result.duration_seconds:.1f} seconds)"
    elif result.interrupted:
        yield "(interrupted)"
    # If Python itself has ended, stderr says so in words.
    if result.exit_code != 0 and result.error is None:
        yield f"(exit code {result.exit_code})"
    if result.error is not None and result.error.name == "CommandFailed":  # it has no traceback in stderr
        yield f"({result.error.message})"
