"""A deployment: the schema of its file, which stages, gateway, launcher and chart read."""
