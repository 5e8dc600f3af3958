"""The thinker stage, which turns recordings, images, videos and text into a reply, and also
provides a row for the talker at every position.
"""
