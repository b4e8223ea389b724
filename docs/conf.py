"""How the site is made: `make docs`."""

from importlib import metadata

project = "bigmem"
author = "The bigmem developers"
version = release = metadata.version("bigmem")

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
exclude_patterns = ["_build"]

# In docstrings a name between single backticks is a name of Python's, and a link if it is ours.
default_role = "py:obj"
autodoc_typehints = "signature"
maximum_signature_line_length = 88
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
myst_heading_anchors = 3

html_theme = "furo"
html_title = "bigmem"
html_copy_source = False
