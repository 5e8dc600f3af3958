"""Model families, one file each: the only place where two stages share model knowledge."""
