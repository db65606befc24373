"""Compiles the text of a cell to code objects, all of them before anything runs."""

from __future__ import annotations
import __future__

import ast
import builtins
import re
from types import CodeType
from typing import Any, NamedTuple

from ramet_guest.cells.sources import Sources

_compile = compile
_ONLY_AST = ast.PyCF_ONLY_AST
_TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_CO_COROUTINE = 0x80
_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag

_BAD_CHARACTER = re.compile("[\0\ud800-\udfff]")
_FIRST_WORD = re.compile(r"[ \t]*([A-Za-z_]\w*)")
_AFTER_NAME = re.compile(r"\s*[=.(\[,:]")
_builtin_names: dict[str, Any] = vars(builtins)
# Cells that use these names expect a running event loop although they do not await.
_NEEDS_LOOP = frozenset(("create_task", "ensure_future", "get_running_loop"))


class Program(NamedTuple):
    """A compiled cell: statements, then perhaps an expression whose value is shown."""

    body: CodeType | None
    value: CodeType | None
    needs_loop: bool
    # True if the body is one line that shows its value itself.
    is_line: bool = False


class Compiler:
    """Compiles cells. Keeps the `from __future__` imports of earlier cells in effect, as a module would."""

    def __init__(self, shell: Any, namespace: dict[str, Any], sources: Sources) -> None:
        self._shell = shell
        self._namespace = namespace
        self._sources = sources
        self.flags = 0
        self._transformers: list[Any] = shell.ast_transformers

    def compile(self, source: str, name: str | None = None, nested: bool = False) -> Program:
        """Compiles a cell and runs nothing.

        `name` is the file name for tracebacks of code that is not a cell, such as a script. `nested` means that a magic
        runs the code inside a cell. Raises SyntaxError, or ValueError, RecursionError and MemoryError from the
        compiler.
        """
        name = name or self._sources.next_name(nested)
        if "\r" in source:
            source = source.replace("\r\n", "\n").replace("\r", "\n")
        # A simple statement on one line, the most frequent cell, needs no tree. This path is twice as fast.
        if "\n" not in source and ";" not in source and ":" not in source and not self._transformers:
            program = self._compile_line(source, name)
            if program is not None:
                return program
        try:
            source, tree = self._parse(source, name)
        finally:
            self._sources.keep(name, source)
        return self._compile_tree(source, tree, name)

    def _compile_line(self, source: str, name: str) -> Program | None:
        """Compiles one simple statement in the mode of Python's own prompt: values go to `sys.displayhook`.

        That mode would show every expression of a compound statement, so the caller passes no line with a colon or
        semicolon.
        """
        if self._is_magic_line(source):
            return None
        try:
            body = _compile(source, name, "single", self.flags | _TOP_LEVEL_AWAIT, True)
        except (SyntaxError, ValueError):
            return None
        self.flags |= body.co_flags & _FUTURES
        self._sources.keep(name, source)
        return Program(body, None, needs_loop(body), True)

    def _parse(self, source: str, name: str) -> tuple[str, ast.Module]:
        """Parses a cell as Python. Only text that does not parse is read as a notebook cell."""
        flags = self.flags | _ONLY_AST
        if "\n" in source or not self._is_magic_line(source):
            try:
                return source, _compile(source, name, "exec", flags, True)
            except IndentationError:
                dedented = dedent(source)
                try:
                    return dedented, _compile(dedented, name, "exec", flags, True)
                except (SyntaxError, ValueError):
                    pass
            except (SyntaxError, ValueError):
                pass
        refuse_bad_characters(source, name)
        refuse_fence(source, name)
        # IPython drops leading empty lines, but tracebacks count them.
        empty = source[: len(source) - len(source.lstrip())].count("\n")
        transformed = "\n" * empty + self._shell.transform_cell(source)
        return transformed, _compile(transformed, name, "exec", flags, True)

    def _is_magic_line(self, line: str) -> bool:
        """Whether the line is a magic. `ls` and `pwd` are valid Python, but mean the magic unless a name hides it."""
        match = _FIRST_WORD.match(line)
        if match is None:
            return False
        word = match[1]
        if word in self._namespace or word in _builtin_names:
            return False
        return self._shell.find_line_magic(word) is not None and not _AFTER_NAME.match(line, match.end())

    def _compile_tree(self, source: str, tree: ast.Module, name: str) -> Program:
        """Compiles a parsed cell. If it ends in an expression, that becomes `value`, unless a semicolon follows it."""
        if self._transformers:
            tree = self._shell.transform_ast(tree)
        statements = tree.body
        last: ast.Expr | None = None
        if statements and isinstance(statements[-1], ast.Expr) and not ends_with_semicolon(source, statements[-1]):
            last = statements[-1]
            del statements[-1]
        body = value = None
        flags = self.flags
        if statements:
            # The body first: a `from __future__` import in it applies to the last expression too.
            body = _compile(tree, name, "exec", flags | _TOP_LEVEL_AWAIT, True)
            flags |= body.co_flags & _FUTURES
        if last is not None:
            value = _compile(ast.Expression(last.value), name, "eval", flags | _TOP_LEVEL_AWAIT, True)
        self.flags = flags
        return Program(body, value, needs_loop(body) or needs_loop(value))


def plain_script(text: str, name: str, sources: Sources) -> Program | None:
    """Compiles a script whose values are not shown and that inherits nothing from cells.

    Returns None if it is not plain Python.
    """
    try:
        body = _compile(text, name, "exec", _TOP_LEVEL_AWAIT, True)
    except (SyntaxError, ValueError):
        return None
    sources.keep(name, text)
    return Program(body, None, bool(body.co_flags & _CO_COROUTINE))


def needs_loop(code: CodeType | None) -> bool:
    return code is not None and (bool(code.co_flags & _CO_COROUTINE) or not _NEEDS_LOOP.isdisjoint(code.co_names))


def ends_with_semicolon(source: str, last: ast.Expr) -> bool:
    if ";" not in source or last.end_lineno is None or last.end_col_offset is None:
        return False
    # The tree counts columns in UTF-8 bytes.
    line = source.split("\n")[last.end_lineno - 1].encode()
    return line[last.end_col_offset :].lstrip(b" \t)").startswith(b";")


def dedent(source: str) -> str:
    """Removes the first line's indentation from every line that has it; keeps the number of lines."""
    lines = source.split("\n")
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    margin = first[: len(first) - len(first.lstrip())]
    return "\n".join(line.removeprefix(margin) for line in lines)


def refuse_bad_characters(source: str, name: str) -> None:
    """Raises SyntaxError, with the line, for characters that no version of Python accepts."""
    match = _BAD_CHARACTER.search(source)
    if match is None:
        return
    start = source.rfind("\n", 0, match.start()) + 1
    end = source.find("\n", match.start())
    line = _BAD_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", source[start : end if end >= 0 else None])
    number = source.count("\n", 0, start) + 1
    what = "a NUL character" if match[0] == "\0" else f"half of a surrogate pair (U+{ord(match[0]):04X})"
    raise SyntaxError(f"{what} cannot be part of code", (name, number, match.start() - start + 1, line))


def refuse_fence(source: str, name: str) -> None:
    """Refuses code in a fence, as models write it in Markdown: no Python and no magic begins so.

    Raises SyntaxError.
    """
    text = source.lstrip()
    if not text.startswith("```"):
        return
    number = source.count("\n", 0, len(source) - len(text)) + 1
    message = "the code is in a Markdown fence: leave out the lines that begin with ```"
    raise SyntaxError(message, (name, number, 1, text.partition("\n")[0]))
