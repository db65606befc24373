"""What commands print."""

from __future__ import annotations

from ramet.cli.output import table


def test_names_in_a_table_cannot_move_the_cursor() -> None:
    lines = table(("NAME", "X"), [("a\x1b[2Jb\n", "ä")])
    assert all(line.isprintable() for line in lines)
    assert "a\\x1b[2Jb\\n" in lines[1]
