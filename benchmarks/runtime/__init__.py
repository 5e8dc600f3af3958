"""What the stage runtime itself costs: real processes and links, engines that compute nothing."""
