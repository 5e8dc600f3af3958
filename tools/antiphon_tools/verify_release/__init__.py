"""Compares a released checkpoint as served by antiphon with its reference and writes a report.

`python -m antiphon_tools.verify_release --help` lists the options. The figures are explained in
`docs/verify-release.md`.
"""
