"""Reports the number of slots that are required for each stage, over all gateways, to KEDA."""
