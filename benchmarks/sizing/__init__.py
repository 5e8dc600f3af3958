"""Whether simulated fleets do what real ones do; see __main__.py."""
