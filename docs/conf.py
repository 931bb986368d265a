"""How Sphinx builds the documentation: `make docs`."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "extensions"))

ADDRESS = ""
"""Where the built pages are hosted. Set it here; while it is empty, what needs it
(canonical links, a site map for search engines) is left out."""

project = "codeneedle"
author = "The codeneedle authors"
copyright = author  # noqa: A001 - the name that Sphinx reads
version = release = version_of("codeneedle")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "every_command",
    "named_commands",
    "fields_of",
    "from_program",
    "dark_pictures",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "extensions", "models/*"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
default_role = "py:obj"
smartquotes = False
highlight_language = "none"
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!codeneedle\.api\.).*")]  # types of others

autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "codeneedle"
html_baseurl = ADDRESS
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "navigation_with_keys": True,
    "top_of_page_buttons": [],
    "light_css_variables": {
        "color-brand-primary": "#a63b08",
        "color-brand-content": "#1f6f9f",
        "color-sidebar-link-text": "#3f444b",
        "color-sidebar-link-text--top-level": "#3f444b",
        "color-brand-visited": "#1f6f9f",
    },
    "dark_css_variables": {
        "color-brand-primary": "#fdae61",
        "color-brand-content": "#9ecae1",
        "color-sidebar-link-text": "#b6bac1",
        "color-sidebar-link-text--top-level": "#b6bac1",
        "color-brand-visited": "#9ecae1",
    },
}
