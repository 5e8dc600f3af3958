"""Who may ask: keys from a file, and what each of them may take."""
