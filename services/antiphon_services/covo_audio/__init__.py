"""Stages of Covo-Audio."""
