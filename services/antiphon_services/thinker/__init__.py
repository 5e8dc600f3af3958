"""Thinkers of all families: recordings, images and text in, a reply and hidden rows out."""
