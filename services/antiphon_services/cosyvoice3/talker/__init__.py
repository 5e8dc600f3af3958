"""Text to speech codes."""
