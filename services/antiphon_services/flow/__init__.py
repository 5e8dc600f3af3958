"""Flow matching: ODE solvers and layers that several models share."""
