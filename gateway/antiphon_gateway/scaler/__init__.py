"""Reports to KEDA how many slots of each stage all gateways together need."""
