"""The code2wav stage, which generates the audio of an answer from its codes by flow matching."""
