"""The stages, one folder each. They never import each other."""
