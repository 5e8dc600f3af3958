"""The stages: a folder for each model family with one for each stage, and what all of them use."""
