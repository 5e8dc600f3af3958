"""The thinker stage, which generates an interleaved stream of text tokens and codes.

Its input is text and recordings.
"""
