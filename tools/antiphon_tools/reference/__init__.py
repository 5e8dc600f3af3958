"""Generates the source of the documentation site.

It consists of the repository's pages and of reference pages that are generated from code.
"""
