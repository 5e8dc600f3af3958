"""The suite; see CONTRIBUTING.md."""
