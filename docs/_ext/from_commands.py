"""Directives `command-output` and `plan-picture`: what commands print and draw, made while pages are built."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from _ext.command_line import output_of

GENERATED = "_generated"
"""Folder of pictures, beside the pages."""


class CommandOutput(Directive):
    """A command and what it prints."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """The nodes in its place."""
        command = " ".join(self.arguments[0].split())
        try:
            text = f"$ {command}\n{output_of(command)}"
        except ValueError as error:
            raise self.error(str(error)) from error
        return [nodes.literal_block(text, text, language="text")]


class PlanPicture(SphinxDirective):
    """The coloured graph of a plan, for light and dark pages; below it the command that shows the plan."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """The nodes in its place."""
        arguments = " ".join(self.arguments[0].split())
        try:
            drawn = {scheme: picture(arguments, scheme) for scheme in ("light", "dark")}
        except ValueError as error:
            raise self.error(str(error)) from error
        folder = Path(self.env.srcdir, GENERATED)
        folder.mkdir(exist_ok=True)
        name = hashlib.sha256(arguments.encode()).hexdigest()[:16]
        figure = nodes.figure(classes=["plan-picture"])
        for scheme, svg in drawn.items():
            file = folder / f"plan-{name}-{scheme}.svg"
            if not file.exists() or file.read_text() != svg:
                file.write_text(svg)
            about = f"What runs where: {arguments}"
            figure += nodes.image(uri=f"/{GENERATED}/{file.name}", alt=about, classes=[f"only-{scheme}", "plan"])
        caption = nodes.caption()
        caption += nodes.literal(text=f"tessera plan {arguments}")
        figure += caption
        return [figure]


def picture(arguments: str, scheme: str) -> str:
    """The SVG of the plan that arguments of `tessera plan` give."""
    words = shlex.split(arguments)
    drawn = output_of(shlex.join(["tessera", "plan", *words, "--format", "svg"]))
    return recoloured(drawn, scheme)


def recoloured(svg: str, scheme: str) -> str:
    """The picture in one scheme's colours only: pages have a switch of their own, which pictures cannot see."""
    from tessera.graph.draw_svg import COLOURS

    return svg.replace(COLOURS["auto"], COLOURS[scheme])


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    app.add_directive("command-output", CommandOutput)
    app.add_directive("plan-picture", PlanPicture)
    return {"parallel_read_safe": True}
