"""The thinker stage: recordings, images, videos and text to a reply, with a row for the talker at
every position."""
