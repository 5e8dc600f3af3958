"""The thinker stage, which converts recordings, images, videos and text to a reply. At every
position, it also provides a row for the talker.
"""
