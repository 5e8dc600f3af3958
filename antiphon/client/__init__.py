"""The client SDK. Use it as `antiphon.Client` and `antiphon.AsyncClient`."""
