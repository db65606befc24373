"""Runs inside the sandbox of a smolagents agent, never here: defines ``final_answer``.

The whole file is run in the sandbox as a cell. ``ramet_final_answer`` is a tool of the program outside. Arguments of
tools are JSON, so other types are written with the markers that smolagents reads.
"""

# Leaves no name but final_answer in the sandbox; so it has no imports at its top, which type hints would need.
# mypy: allow-untyped-defs, allow-untyped-calls, check-untyped-defs=False


def _make_final_answer(tell):
    import base64
    import dataclasses
    import datetime
    import decimal
    import io
    import pathlib
    import sys

    class FinalAnswer(BaseException):
        """Ends the cell once the answer is known."""

    def marked(name, **fields):
        return {"__type__": name, **fields}

    def many(values):
        return [plain(value) for value in values]

    def in_base64(data):
        return base64.b64encode(data).decode("ascii")

    def plain(value):
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, dict):
            if all(type(key) is str for key in value):
                return {key: plain(one) for key, one in value.items()}
            return marked("dict_with_complex_keys", data=[many(pair) for pair in value.items()])
        if isinstance(value, list):
            return many(value)
        for kind in (tuple, set, frozenset):
            if isinstance(value, kind):
                return marked(kind.__name__, data=many(value))
        if isinstance(value, (bytes, bytearray)):
            return marked("bytes", data=in_base64(value))
        if isinstance(value, complex):
            return marked("complex", real=value.real, imag=value.imag)
        for moment in (datetime.datetime, datetime.date, datetime.time):
            if isinstance(value, moment):
                return marked(moment.__name__, data=value.isoformat())
        if isinstance(value, datetime.timedelta):
            return marked("timedelta", total_seconds=value.total_seconds())
        if isinstance(value, decimal.Decimal):
            return marked("Decimal", data=str(value))
        if isinstance(value, pathlib.PurePath):
            return marked("Path", data=str(value))
        return special(value)

    def special(value):
        """Types of libraries. A library is loaded if there is a value of its type."""
        numpy, pictures = sys.modules.get("numpy"), sys.modules.get("PIL.Image")
        if numpy is not None and isinstance(value, numpy.generic):
            return plain(value.item())
        if numpy is not None and isinstance(value, numpy.ndarray):
            return marked("ndarray", data=many(value.tolist()), dtype=str(value.dtype))
        if pictures is not None and isinstance(value, pictures.Image):
            file = io.BytesIO()
            value.save(file, format="PNG")
            return marked("PIL.Image", data=in_base64(file.getvalue()))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
            return marked("dataclass", class_name=type(value).__name__, module=type(value).__module__, data=fields)
        raise TypeError(
            f"a {type(value).__name__} cannot leave the sandbox as an answer: give text, numbers, lists, dicts, bytes, "
            "arrays or images"
        )

    def final_answer(*arguments, **named):
        tell(arguments=many(arguments), named={name: plain(value) for name, value in named.items()})
        raise FinalAnswer

    return final_answer


final_answer = _make_final_answer(ramet_final_answer)  # type: ignore[name-defined] # noqa: F821
del _make_final_answer
