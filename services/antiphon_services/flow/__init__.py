"""Flow matching: ODE solvers and shared model layers."""
