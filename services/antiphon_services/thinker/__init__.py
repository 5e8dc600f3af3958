"""The thinkers of all families. A thinker converts recordings, images and text to a reply and
hidden rows.
"""
