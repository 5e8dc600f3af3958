"""Builds the images with docker or buildah: `make images`. Needs the standard library alone."""
