"""A group of commands that says which it has when it is asked for one it has not."""

from __future__ import annotations

import difflib
from typing import NoReturn

import click


class NamedGroup(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or self.refuse(ctx, cmd_name)

    def refuse(self, ctx: click.Context, name: str) -> NoReturn:
        names = self.list_commands(ctx)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        ctx.fail(f"there is no command '{name}'; {hint}")
