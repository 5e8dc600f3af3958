"""Builds the images with docker or buildah: `make images`. Only requires the standard library."""
