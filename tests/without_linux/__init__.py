"""A system that has nothing that only Linux has. See `sitecustomize.py`."""

from pathlib import Path

FOLDER = Path(__file__).parent
"""On `PYTHONPATH` or in an environment's packages, it takes effect in each Python process."""
