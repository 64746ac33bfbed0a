"""Sphinx's settings. They are read by its builder alone: see ``tools.site.build``."""

import tomllib
from pathlib import Path

_SITE = Path(__file__).parent
project = "Mainspring"
version = release = tomllib.loads((_SITE.parents[1] / "pyproject.toml").read_text())["project"]["version"]
copyright = "the maintainers of Mainspring"  # noqa: A001 - its name is Sphinx's

extensions = ["myst_parser", "sphinx_copybutton", "sphinx_inline_tabs"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 6
# A page may begin below the first level, as those that are generated do, and code may be of no language.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
# Markdown as it is read elsewhere: straight quotes stay.
smartquotes = False

# A prompt is not copied.
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = f"Mainspring {version}"
html_static_path = [str(_SITE / "static")]
html_css_files = ["site.css"]
# The order of the results of the search.
html_search_scorer = str(_SITE / "scorer.js")
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None
