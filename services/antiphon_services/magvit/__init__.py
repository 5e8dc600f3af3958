"""MAGVITv2, which converts images to tokens and tokens to images (arXiv 2310.05737)."""
