"""Generates the source of the documentation site.

The source consists of the repository's own pages and reference pages generated from code.
"""
