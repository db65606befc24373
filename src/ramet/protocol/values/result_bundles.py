"""Results as a notebook shows them.

A notebook trusts what its own kernel displays: a script in it can run code as the notebook's user. Output of a sandbox
does not deserve that trust. Pictures and texts can do no harm; HTML goes into a frame in which no script runs and which
cannot reach the page, SVG into an image, for which browsers promise the same. Anything else is left out. The frame
fetches nothing: the address of a picture could carry data out of a sandbox that has no network, and into places that
only the notebook's machine can reach.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.protocol.values.results import Result, RichResult

_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_PLAIN = ("text/plain", "text/latex", "application/json")
_HTML, _SVG = "text/html", "image/svg+xml"
# Stands first in the frame, so that nothing before it can undo it.
_FETCHES_NOTHING = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    'img-src data:; font-src data:; media-src data:">'
)
# A frame without scripts cannot report its height, so guess it from the rows of its tables.
_ROW_PIXELS, _FRAME_PIXELS, _FRAME_PIXELS_AT_MOST = 26, 60, 640

Bundle = dict[str, object]


def bundle_of_one(
    one: RichResult, include: Collection[str] | None = None, exclude: Collection[str] | None = None
) -> Bundle:
    """Return the forms of a displayed object by MIME type, with bytes in base64, as IPython wants them."""
    bundle: Bundle = {name: one.data[name] for name in _PLAIN if name in one.data}
    for name in _PICTURES:
        form = one.data.get(name)
        if isinstance(form, bytes):
            bundle[name] = _base64(form)
    html = _markup(one)
    if html is not None:
        bundle[_HTML] = html
    return _chosen(bundle, include, exclude)


def bundle_of_all(
    result: Result, include: Collection[str] | None = None, exclude: Collection[str] | None = None
) -> Bundle:
    """Return a result's text and, if something richer than text was shown, a page with everything in order."""
    bundle: Bundle = {"text/plain": str(result)}
    if any(_is_rich(one) for one in result.results):
        parts = [_preformatted(result.background + result.stdout)]
        for one in result.results:
            parts.append(_picture(one) or _markup(one) or _preformatted(one.text or ""))
        bundle[_HTML] = "\n".join(part for part in (*parts, _preformatted(result.stderr)) if part)
    return _chosen(bundle, include, exclude)


def _is_rich(one: RichResult) -> bool:
    return any(name in one.data for name in (*_PICTURES, _HTML, _SVG))


def _picture(one: RichResult) -> str | None:
    for name in _PICTURES:
        form = one.data.get(name)
        if isinstance(form, bytes):
            return f'<img src="data:{name};base64,{_base64(form)}">'
    return None


def _markup(one: RichResult) -> str | None:
    """Return HTML or SVG in a form in which no script can run."""
    html, svg = one.data.get(_HTML), one.data.get(_SVG)
    if isinstance(svg, str):
        return f'<img src="data:{_SVG};base64,{_base64(svg.encode("utf-8", "replace"))}">'
    if not isinstance(html, str):
        return None
    height = min(_FRAME_PIXELS + _ROW_PIXELS * html.count("<tr"), _FRAME_PIXELS_AT_MOST)
    style = f"width: 100%; height: {height}px; border: 0"
    return f'<iframe sandbox="" style="{style}" srcdoc="{escape(_FETCHES_NOTHING + html)}"></iframe>'


def _preformatted(text: str) -> str:
    text = text.rstrip("\n")
    return f"<pre>{escape(text)}</pre>" if text else ""


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _chosen(bundle: Bundle, include: Collection[str] | None, exclude: Collection[str] | None) -> Bundle:
    return {
        name: form
        for name, form in bundle.items()
        if (not include or name in include) and not (exclude and name in exclude)
    }
