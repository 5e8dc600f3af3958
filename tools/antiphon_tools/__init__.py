"""Command-line tools for a checkout: the launcher, the demo, load tests and others."""
