"""Execute a notebook as Jupyter does, and print the outputs of its cells as JSON: the notebook."""

from __future__ import annotations

import json
import sys

import nbformat
from nbclient import NotebookClient

CELL_S = 120

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=CELL_S, kernel_name="python3").execute()
print(json.dumps([each.outputs for each in notebook.cells if each.cell_type == "code"]))
