"""Reports to KEDA how many slots all gateways together need on each stage."""
