"""Opens pictures of a sandbox in the owner's process.

Code in the sandbox chooses their bytes, whatever type it claims. Pillow selects a decoder by the bytes, and some of its
decoders are old or start programs (EPS: Ghostscript). So only PNG is opened, and only up to the size of a plot or a
screen.
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
    """The bytes are not a picture that we open. The message says why."""


def open_png(data: bytes) -> PIL.Image.Image:
    """Decode a PNG completely: a broken one fails here, not in the code that shows it. Raises NotAPicture."""
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
