"""Transport between stage processes: links, payload transports, TLS and listening."""
