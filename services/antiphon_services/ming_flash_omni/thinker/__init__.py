"""The thinker stage, which reads text, recordings and images and generates text."""
