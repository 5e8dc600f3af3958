"""Report the wanted slots of each stage over all gateways to KEDA."""
