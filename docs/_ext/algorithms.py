"""Directives of the pages of algorithms: tables that are made of the code while pages are built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _ext import algorithm_facts
from _ext.markdown import add_markdown_directive

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    add_markdown_directive(app, "algorithms-table", algorithm_facts.algorithms_table, arguments=0)
    add_markdown_directive(app, "algorithm-facts", algorithm_facts.facts_table)
    add_markdown_directive(app, "algorithm-options", algorithm_facts.options_table)
    add_markdown_directive(app, "algorithm-metrics", algorithm_facts.metrics_table)
    add_markdown_directive(app, "tunable-table", algorithm_facts.tunable_table, arguments=0)
    add_markdown_directive(app, "presets-table", algorithm_facts.presets_table, arguments=0)
    return {"parallel_read_safe": True}
