"""Speed of single engines, against the reference and against other ways."""
