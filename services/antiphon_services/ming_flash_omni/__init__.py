"""The stages of Ming-flash-omni."""
