"""Flow matching: ODE solvers, and the layers that models share."""
