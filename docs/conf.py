"""How Sphinx builds the site: `make docs`.

Nothing is fetched from the network. Figures are drawn before the pages are read (`draw.py`), from plans made
on the spot and from the CSV files in benchmarks/results/; examples are executed (`examples/`). What is
generated lies in the folders that .gitignore names.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

import dasp  # noqa: E402

project = "dasp"
author = "the dasp developers"
copyright = "the dasp developers, BSD-3-Clause"
release = version = dasp.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "site_parts",
]
templates_path = ["_templates"]
exclude_patterns = ["gallery/**/*.ipynb", "gallery/**/*.py", "gallery/sg_execution_times.rst"]

# Docstrings give shapes and units with every type, so signatures stay short.
autodoc_typehints = "none"
autodoc_member_order = "groupwise"
toc_object_entries_show_parents = "hide"
autosummary_generate = True
# What is documented without being installed.
autodoc_mock_imports = [] if importlib.util.find_spec("torch") else ["torch"]
numpydoc_show_class_members = False
# A name between single backticks is a link where it is documented, and a word where it is not.
default_role = "autolink"
nitpick_ignore_regex = [("py:obj", ".*")]

myst_enable_extensions = ["colon_fence", "dollarmath"]
html_math_renderer = "mathml"
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "site_parts.GalleryOrder",
    "download_all_examples": False,
    "thumbnail_size": (640, 360),
    "show_signature": False,
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,
    "matplotlib_animations": False,
    "reset_modules": ("matplotlib", "site_parts.style_figures"),
    "abort_on_example_error": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "dasp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/icon.svg"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": f"dasp {release}", "image_light": "_static/icon.svg", "image_dark": "_static/icon.svg"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "github-dark",
}
html_context = {"default_mode": "auto"}
