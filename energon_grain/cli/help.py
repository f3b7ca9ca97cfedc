# SPDX-License-Identifier: Apache-2.0
"""`--help`: the layout of the help of commands and groups.

An option whose name is too long for the first column gets its own line, and its description follows below. No name is
ever cut, at any width.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import typer
from typer.core import TyperCommand

EXIT_CODES = {
    "0": "success",
    "1": "the data, a store or the disk caused a failure, or a check found problems",
    "2": "the command line or a configuration file is invalid",
    "130": "interrupted by Ctrl-C",
}
_LEAST, _MOST = 40, 100
"""Width of the text in columns: long lines are hard to read on wide terminals."""
_NAMES_WIDTH = 26
"""Width of the first column. Longer names are on a line above their description."""
_TYPES = {"int range": "int", "integer range": "int", "integer": "int", "float range": "float", "str": "text"}
"""Names of value types: versions of typer differ."""


class HelpfulCommand(TyperCommand):
    """A command with this layout. `examples` are the command lines that its help shows."""

    examples: Sequence[str] = ()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text(self, ctx))


def help_text(command: Any, ctx: Any) -> str:
    """Return the help of a command or a group."""
    width = max(_LEAST, min(_MOST, shutil.get_terminal_size((80, 24)).columns))
    lines = [f"Usage: {' '.join([ctx.command_path, *_usage(command, ctx)])}"]
    for paragraph in (command.help or "").split("\n\n"):
        lines += ["", *textwrap.wrap(paragraph, width, break_on_hyphens=False)]
    for title, rows in _sections(command, ctx):
        lines += ["", typer.style(f"{title}:", bold=True), *_laid_out(rows, width)]
    return "\n".join([*lines, ""])


def _usage(command: Any, ctx: Any) -> Iterator[str]:
    yield "[OPTIONS]"
    for parameter in command.get_params(ctx):
        if parameter.param_type_name == "argument":
            name = str(parameter.name).upper()
            yield name if parameter.required else f"[{name}]"
    if hasattr(command, "list_commands"):
        yield "COMMAND [ARGS]..."


def _sections(command: Any, ctx: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Titles, and rows of two columns: examples, arguments, panels of options or commands, exit codes."""
    yield "Examples", [(example, "") for example in command.examples]
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for panel, name, text in (*_parameters(command, ctx), *_commands(command, ctx)):
        panels.setdefault(panel, []).append((name, text))
    yield from ((title, rows) for title, rows in panels.items() if rows)
    yield "Exit codes", [*EXIT_CODES.items()]


def _parameters(command: Any, ctx: Any) -> Iterator[tuple[str, str, str]]:
    """Heading, name and description of arguments and options."""
    for parameter in command.get_params(ctx):
        if not getattr(parameter, "hidden", False):
            is_argument = parameter.param_type_name == "argument"
            panel = getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
            yield panel, str(parameter.name).upper() if is_argument else _names(parameter), _described(parameter, ctx)


def _commands(command: Any, ctx: Any) -> Iterator[tuple[str, str, str]]:
    """Heading, name and summary of the commands of a group."""
    for name in command.list_commands(ctx) if hasattr(command, "list_commands") else ():
        each = command.get_command(ctx, name)
        yield each.rich_help_panel or "Commands", name, (each.help or "").split("\n\n")[0]


def _names(option: Any) -> str:
    """All names of an option, and the type of its value."""
    names = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        return " / ".join([names, *option.secondary_opts])
    if option.is_flag or option.count:
        return names
    choices = getattr(option.type, "choices", None)
    kind = "|".join(map(str, choices)) if choices else _TYPES.get(option.type.name, option.type.name)
    return f"{names} <{kind}>"


def _described(parameter: Any, ctx: Any) -> str:
    """The description, with default value and limits."""
    record = parameter.get_help_record(ctx)
    return "" if record is None else record[1].replace("\\[", "[")


def _laid_out(rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Two columns: the first is as wide as its names, up to `_NAMES_WIDTH`."""
    first = max((len(name) for name, _ in rows if len(name) <= _NAMES_WIDTH), default=4)
    for name, text in rows:
        wrapped = textwrap.wrap(" ".join(text.split()), width - first - 4, break_on_hyphens=False)
        if len(name) > first and text:
            yield f"  {_coloured(name)}"
            name = ""
        for left, right in zip_longest([name], wrapped, fillvalue=""):
            yield f"  {_coloured(left)}{' ' * (first - len(left))}  {right}".rstrip()


def _coloured(name: str) -> str:
    return typer.style(name, fg=typer.colors.CYAN) if name else ""
