"""Compares a released checkpoint, as antiphon serves it, with its reference, and writes a report.

`python -m antiphon_tools.verify_release --help`; `docs/verify-release.md` explains the figures.
"""
