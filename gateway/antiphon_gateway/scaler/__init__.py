"""Reports to KEDA how many slots of each stage are required across all gateways."""
