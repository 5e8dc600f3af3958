"""How many slots of each stage are wanted over all gateways, told to KEDA."""
