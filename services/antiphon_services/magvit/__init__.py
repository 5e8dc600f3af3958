"""MAGVITv2: images to tokens, and tokens to images (arXiv 2310.05737)."""
