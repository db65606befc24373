"""Pictures that code in a sandbox made, opened in the owner's process.

Their bytes are the sandbox's, whatever type it says they have. Pillow looks for a decoder by what it finds in them, and
some of its decoders are old, or start programs (EPS: Ghostscript). So nothing but PNG is opened, and none that would
take more memory than a picture of a plot or a screen.
"""

from __future__ import annotations

import io
import struct

import PIL.Image

PIXELS_AT_MOST = 25_000_000
# Signature, then the first chunk: its length, its type, width, height (PNG, 5.2 and 11.2.2).
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEAD = struct.Struct(">8sI4sII")


class NotAPicture(ValueError):
    """Bytes that are not opened. Its text says why."""


def open_png(data: bytes) -> PIL.Image.Image:
    """The picture, decoded: what is broken is found here and not by whoever looks at it."""
    if len(data) < _HEAD.size or not data.startswith(_SIGNATURE):
        raise NotAPicture("a picture of a sandbox must be a PNG")
    _, _, kind, width, height = _HEAD.unpack_from(data)
    if kind != b"IHDR" or not width or not height:
        raise NotAPicture("this PNG has no size in its first chunk")
    if width * height > PIXELS_AT_MOST:
        raise NotAPicture(f"a picture has at most {PIXELS_AT_MOST} pixels, this one {width} x {height}")
    try:
        image = PIL.Image.open(io.BytesIO(data), formats=("PNG",))
        if image.size != (width, height):
            raise NotAPicture("this PNG has two sizes")
        image.load()
    except NotAPicture:
        raise
    # Pillow raises these three for broken files (UnidentifiedImageError is an OSError, a broken chunk a SyntaxError).
    except (OSError, SyntaxError, ValueError) as error:
        raise NotAPicture(f"this PNG cannot be read: {error}") from error
    return image
