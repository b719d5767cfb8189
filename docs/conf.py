"""How `make docs` makes a site of this folder (Sphinx, with MyST for Markdown and the theme Furo)."""

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

project = "veilmq"
author = "the veilmq developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
html_theme = "furo"
html_title = "veilmq"
html_show_copyright = False
myst_heading_anchors = 4
nitpicky = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "fully-qualified"  # the short one leaves ~ in signatures
autodoc_default_options = {"members": True}  # show-inheritance counts as given, also with False
exclude_patterns: list[str] = []


def setup(app: Sphinx) -> None:
    """Show stories and diagrams as the text that they are."""
    for language in ("story", "mermaid"):
        app.add_lexer(language, TextLexer)
