"""The talker stage, which turns the prompt's hidden rows and the reply's IDs into codec frames."""
