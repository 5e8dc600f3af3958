"""The source of the documentation site: the repository's pages, and reference pages from source."""
