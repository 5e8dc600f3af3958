"""Flow matching: solvers of its differential equation, and the layers that models share."""
