"""The stages of Covo-Audio."""
