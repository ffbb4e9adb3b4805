"""How `make docs` builds the site: Sphinx, Markdown by MyST, executed notebooks; nothing is fetched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Plans are those of a machine without profiles, so that pages do not depend on where they were built.
os.environ["TESSERA_CACHE"] = str(HERE.parent / "build" / "docs-cache")
sys.path.insert(0, str(HERE))

from _ext.systems import in_order  # noqa: E402

from tessera import __version__  # noqa: E402

project = "Tessera"
author = "Tessera contributors"
copyright = "Tessera contributors; Apache License 2.0"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "sphinx_design",
    "_ext.from_commands",
    "_ext.algorithms",
    "_ext.policies",
    "_ext.systems",
]
exclude_patterns = ["_generated", "_ext", "_static"]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_block", "attrs_inline"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / "build" / "docs-notebooks")
nb_execution_timeout = 180
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = False

html_theme = "sphinx_book_theme"
default_role = "code"
html_title = "Tessera"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "use_download_button": False,
    "navbar_persistent": [],
    "use_fullscreen_button": False,
    "show_toc_level": 2,
    "home_page_in_toc": True,
}

FOLDERS = {
    "algorithms/index": ["*"],
    "decisions/README": ["0*"],
    "notebooks/index": ["*"],
    "policies": ["policies/*"],
    "systems/README": in_order(),
}
"""Page -> the pages below it. They are listed here, so that such a page reads well as a plain file too."""


def add_contents(_: Sphinx, page: str, source: list[str]) -> None:
    """Tell Sphinx which pages lie below a page."""
    if page in FOLDERS:
        source[0] += "\n".join(["\n\n```{toctree}", ":hidden:", ":glob:", "", *FOLDERS[page], "```", ""])


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.connect("source-read", add_contents)
