"""Markdown in place of directives: tables, and a directive for a function that gives Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tessera.errors import TesseraError

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def add_markdown_directive(app: Sphinx, name: str, render: Callable[..., str], arguments: int = 1) -> None:
    """Add a directive in whose place stands the Markdown that a function makes of its arguments."""
    from docutils import nodes
    from docutils.parsers.rst import Directive
    from docutils.statemachine import StringList

    class Rendered(Directive):
        required_arguments = arguments

        def run(self) -> list[nodes.Node]:
            try:
                lines = render(*self.arguments).splitlines()
            except (TesseraError, ValueError, KeyError) as error:
                raise self.error(str(error)) from error
            container = nodes.container()
            self.state.nested_parse(StringList(lines, source=name), self.content_offset, container)
            return container.children

    app.add_directive(name, Rendered)
