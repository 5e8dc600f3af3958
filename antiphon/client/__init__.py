"""The Python SDK, used as `antiphon.Client` and `antiphon.AsyncClient`."""
