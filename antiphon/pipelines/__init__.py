"""Model families, one file each. Only here do two stages share knowledge of a model."""
