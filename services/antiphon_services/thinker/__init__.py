"""The thinkers of all model families. A thinker turns recordings, images and text into a reply and
hidden rows.
"""
