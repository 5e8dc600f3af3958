"""The thinker stage. It turns recordings, images, videos and text into a reply, and it provides a
row for the talker at every position.
"""
