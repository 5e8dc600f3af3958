"""Answers that go on when a replica is lost."""
