"""A group of commands that says which it has when it is asked for one it has not."""

from __future__ import annotations

import click


class HelpfulGroup(click.Group):
    """Names the nearest command, or all, instead of only saying that there is none."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not ctx.resilient_parsing and self.get_command(ctx, name) is None and not name.startswith("-"):
            import difflib

            names = self.list_commands(ctx)
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            ctx.fail(f"there is no command '{name}'; {hint}")
        return super().resolve_command(ctx, args)
