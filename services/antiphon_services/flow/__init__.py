"""Flow matching. This package contains ODE solvers and the layers that several models share."""
